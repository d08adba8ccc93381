package etcdclient

import (
	"context"
	"io"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/grpclog"
)

// gRPC's own log goes to the process's standard error unless another logger is set; what
// matters of it is in the errors of calls.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) }

// zapTo makes the logger of etcd's client, which writes to ours. A call that fails is
// repeated and explained by us, so what it has to say is for debugging.
func zapTo(log *slog.Logger) *zap.Logger { return zap.New(zapCore{log}) }

// zapCore is a zapcore.Core that writes to a slog.Logger.
type zapCore struct{ log *slog.Logger }

// Enabled implements zapcore.LevelEnabler.
func (z zapCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel && z.log.Enabled(context.Background(), slog.LevelDebug)
}

// With implements zapcore.Core.
func (z zapCore) With(fields []zapcore.Field) zapcore.Core {
	return zapCore{z.log.With(attributes(fields)...)}
}

// Check implements zapcore.Core.
func (z zapCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if z.Enabled(e.Level) {
		return to.AddCore(e, z)
	}
	return to
}

// Write implements zapcore.Core.
func (z zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	z.log.Debug("etcd's client: "+e.Message, attributes(fields)...)
	return nil
}

// Sync implements zapcore.Core.
func (z zapCore) Sync() error { return nil }

func attributes(fields []zapcore.Field) []any {
	values := zapcore.NewMapObjectEncoder()
	var list []any
	for _, f := range fields {
		f.AddTo(values)
		list = append(list, f.Key, values.Fields[f.Key])
	}
	return list
}
