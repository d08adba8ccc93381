package cli

import (
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
	const open = "no token: whoever reaches this port can join or end any job; `rallypoint token new` makes one"
	if required == params.SecurityRequire {
		return failed("%s: %s; give it to this command and all nodes (--token-file, %s); %s=%s makes that an error", listen, open, params.EnvTokenFile, params.EnvSecurity, required)
	}
	log.Warn(open)
	return nil
}
