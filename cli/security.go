package cli

import (
	"fmt"
	"log/slog"
	"net"
	"os"

	"rallypoint/core/params"
	"rallypoint/core/secret"
)

// checkServeSecurity warns of a control plane that other machines reach and that has no
// token. With RALLYPOINT_SECURITY=require that is an error.
func checkServeSecurity(listen net.Addr, token *secret.Token, log *slog.Logger) error {
	required := os.Getenv(params.EnvSecurity)
	if required != "" && required != params.SecurityRequire {
		return failed("environment variable %s=%.80q: expected %q, or nothing", params.EnvSecurity, required, params.SecurityRequire)
	}
	tcp, ok := listen.(*net.TCPAddr)
	if token != nil || ok && tcp.IP.IsLoopback() {
		return nil
	}
	open := fmt.Sprintf("there is no token: a process that reaches %s can join, change or end every job; make one (`rallypoint token new FILE`) "+
		"and give it to this command and all nodes (--token-file, %s)", listen, params.EnvTokenFile)
	if required == params.SecurityRequire {
		return failed("%s; %s=%s makes that an error", open, params.EnvSecurity, required)
	}
	log.Warn(open)
	return nil
}
