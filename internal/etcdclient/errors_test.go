package etcdclient

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRemedyOfAnEndedHandshake: of a port that speaks the other protocol the client may have no
// more than gRPC's words.
func TestRemedyOfAnEndedHandshake(t *testing.T) {
	for name, err := range map[string]error{
		"end, in words":   status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: EOF"`),
		"reset, in words": status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: read tcp: connection reset by peer"`),
		"reset":           errors.Join(syscall.ECONNRESET),
	} {
		t.Run(name, func(t *testing.T) {
			if text := remedy(err, &Config{TLS: true}); !strings.Contains(text, "etcd:// instead of etcds://") {
				t.Errorf("with TLS: %s", text)
			}
			if text := remedy(err, &Config{}); !strings.Contains(text, "write etcds://") {
				t.Errorf("without TLS: %s", text)
			}
		})
	}
}
