package cli

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	rallypoint "rallypoint"
	"rallypoint/core/control"
	"rallypoint/core/control/peers"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/statustext"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
)

const serveLong = `Serve the control plane, which decides which nodes take part in each job, with which
ranks. Any number of jobs can share it, each under its own --rdzv-id. A job survives the
loss of any of its nodes, and a restart of this process.

With --data-dir jobs also survive a crash: every answer is on disk before a node gets it.
Restart the server with the same directory: nodes reconnect by themselves within their
lease (10 s by default), and no worker restarts. Without --data-dir, members report what
they know, within join_timeout; their agents' keys are lost.

With --peers three or five servers on machines of their own stand in for each other: one
leads, and the others send nodes on to it. Every answer is with a majority of them before
a node gets it. When the leader dies or falls silent they elect the next one, and no worker
restarts. With a --data-dir of its own each, jobs also survive the end of all servers.
Jobs name all of them: --rdzv-endpoint=a:29400,b:29400,c:29400.

It logs its settings first, prints one line when it is ready, and ends on SIGTERM or SIGINT. Its port also
answers HTTP: /healthz, /readyz, /status (JSON), /metrics (Prometheus), and / with a page for
browsers. "rallypoint status" shows what it knows; "rallypoint admin" closes jobs,
evicts nodes and copies the data directory.

Anyone who can reach the port can join and close any job, unless there is a token
("rallypoint token new"). With a token, everything except HTTP uses TLS, and HTTP answers
only this process's user on this machine (/healthz answers everyone). The default address
is reachable from this machine only; give the address of a trusted network, or 0.0.0.0
for every interface.

Each option can also be set by a variable, such as RALLYPOINT_LISTEN for --listen, or in
the YAML file of --config, "listen: 0.0.0.0:29400". The command line wins over variables,
and variables win over the file. The file must belong to this user or to root, and no
other user may be able to write it.`

const serveExample = `  rallypoint serve
  rallypoint serve --listen 0.0.0.0:29400
  rallypoint serve --listen 0.0.0.0:29400 --token-file /etc/rallypoint/token
  rallypoint serve --listen 0.0.0.0:29400 --data-dir /var/lib/rallypoint
  rallypoint serve --listen 0.0.0.0:29400 --peers a:29400,b:29400,c:29400 --data-dir /var/lib/rallypoint
  rallypoint serve --listen [fd00::1]:29400 --log-level debug
  RALLYPOINT_LISTEN=0.0.0.0:29400 rallypoint serve --config /etc/rallypoint/serve.yaml`

func newServe(log *logging) *cobra.Command {
	var config configFlag
	var o serveOptions
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve the control plane of many jobs", Long: serveLong, Example: serveExample,
		Args: noArgs,
		// In the place of the root's: the file may give the level of the log.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.apply(cmd.Flags()); err != nil {
				return err
			}
			return log.check()
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.serve(cmd, log) },
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&config.path, "config", "", "YAML `FILE` with options: lines such as \"listen: 0.0.0.0:29400\" (default $"+envConfig+", else none)")
	return cmd
}

type serveOptions struct {
	listen    string
	token     tokenFlag
	httpOpen  bool
	httpNames []string
	state     serveState
	peers     servePeers
}

func (so *serveOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&so.listen, "listen", fmt.Sprintf("127.0.0.1:%d", params.DefaultPort), "`HOST:PORT` to listen on; a port alone means 127.0.0.1; port 0 means any free one")
	so.token.addTo(cmd)
	cmd.Flags().BoolVar(&so.httpOpen, "http-open", false, "answer /metrics from anywhere, even with a token, as a scraper needs; never /status, which has the text of exceptions")
	cmd.Flags().StringArrayVar(&so.httpNames, "http-name", nil, "another `NAME` by which browsers may reach /status and /metrics, for instance of an Ingress, besides addresses, localhost, this machine's name and the one in --listen; may be repeated")
	so.state.addFlags(cmd.Flags())
	so.peers.addFlags(cmd.Flags())
}

func (so *serveOptions) serve(cmd *cobra.Command, log *logging) error {
	addr, err := parseListen(so.listen, params.DefaultPort)
	if err != nil {
		return err
	}
	if err := so.state.check(); err != nil {
		return err
	}
	names, own, err := so.peers.servers(cmd.Context(), addr)
	if err != nil {
		return err
	}
	log.serve(cmd)
	backups := catchBackupRequests()
	var data *control.Data
	var group *standby.Peers
	if names == nil {
		data, err = so.state.open()
	} else {
		group, err = so.peers.group(names, own, &so.state)
	}
	switch {
	case err != nil:
		backups.stop()
		return err
	case data != nil:
		defer data.Close()
		backups.serve(data, log.logger())
	case group != nil && group.Replica.Path() != "":
		defer group.Replica.Close()
		backups.serve(group.Replica, log.logger())
	default:
		backups.serve(nil, log.logger())
	}
	defer backups.stop() // before the directory is closed
	recording, err := so.state.openRecording(log.logger())
	if err != nil {
		return err
	}
	if recording != nil {
		defer recording.Close()
	}
	secret, err := so.token.open(log)
	if err != nil {
		return err
	}
	l, err := addr.open(cmd.Context(), wire.ListenConfig())
	if err != nil {
		return err
	}
	so.announce(log.logger())
	if err := checkServeSecurity(l.Addr(), secret, log.logger()); err != nil {
		l.Close()
		return err
	}
	cfg := control.Config{
		Fixed: addr.Port != 0, Token: secret, MetricsOpen: so.httpOpen, HTTPNames: append(so.httpNames, addr.Host), Log: log.logger(), Text: statustext.Plainly, Data: data, Quota: so.state.quota, ForgetAfter: so.state.forgetAfter,
		Peers: group,
	}
	if recording != nil {
		cfg.Trace, cfg.AwaitTrace = recording.Record, recording.Flush
	}
	s := control.Start(cfg, l)
	if group != nil {
		taking, err := peers.Start(peers.Config{Group: group, Lease: so.peers.lease(), Token: secret, Host: s, Log: log.logger()})
		if err != nil {
			_ = s.Close()
			return err
		}
		defer taking.Close()
	}
	log.ready(cmd, fmt.Sprintf("control plane listening on %s", l.Addr()))
	<-cmd.Context().Done()
	if group != nil {
		group.Close() // the others need not prove that this server is gone
	}
	if err := s.Close(); err != nil {
		return failed("stopping: %w", err)
	}
	return nil
}

func (so *serveOptions) announce(log *slog.Logger) {
	s, q := &so.state, &so.state.quota
	log.Info("rallypoint serve begins", "version", rallypoint.Version(), "data_dir", cmp.Or(s.dir, "none"), "token_file", cmp.Or(so.token.file(), "none"),
		"forget_after", s.forgetAfter, "max_nodes", q.Nodes, "max_connections", q.Connections, "max_keys", q.Keys, "max_key_bytes", q.KeyBytes, "max_bytes", q.Bytes,
		"max_total_bytes", q.TotalBytes, "max_runs_per_address", q.RunsPerAddress)
}
