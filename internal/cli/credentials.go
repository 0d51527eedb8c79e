package cli

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// tokenVariables are the environment variables of the token, in order of precedence. A peer
// reads its own token from the same variables.
func tokenVariables() []string { return []string{config.Prefix + "AUTH_TOKEN", "MANIFEST_AUTH_TOKEN"} }

// maxToken bounds a token file, in bytes.
const maxToken = 16 << 10

// systemRoots is the value of --tls-ca for the system's certificate authorities.
const systemRoots = "system"

// credentials are the flags that authenticate the user to a peer and the peer to the user.
type credentials struct {
	token     string
	tokenFile string
	ca        string
	cert, key string
}

// flags adds the flags for credentials.
func (c *credentials) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.token, "token", "", "bearer token, visible to other users of this host (environment BLACKHOLE_AUTH_TOKEN)")
	f.StringVar(&c.tokenFile, "token-file", "", "file with the bearer token")
	f.StringVar(&c.ca, "tls-ca", "", "use TLS and trust these certificate authorities: a PEM file, or "+systemRoots)
	f.StringVar(&c.cert, "cert", "", "use TLS with this client certificate: a PEM file")
	f.StringVar(&c.key, "key", "", "private key of the certificate: a PEM file")
}

// options returns the dial options for these credentials.
func (c *credentials) options(con *console) ([]grpc.DialOption, error) {
	var opts []grpc.DialOption
	if c.ca != "" || c.cert != "" || c.key != "" {
		ca := c.ca
		if ca == systemRoots {
			ca = ""
		}
		tls, err := client.TLSFiles(ca, c.cert, c.key)
		if err != nil {
			return nil, fieldNames{"ca": "--tls-ca", "cert": "", "key": ""}.rename(err)
		}
		opts = append(opts, client.WithTLS(tls))
	}
	token, err := c.secret(con)
	if err != nil {
		return nil, err
	}
	if token != "" {
		opts = append(opts, client.WithToken(token))
	}
	return opts, nil
}

// secret returns the token, or "" for none.
func (c *credentials) secret(con *console) (string, error) {
	switch {
	case c.token != "" && c.tokenFile != "":
		return "", fault.Invalidf("--token", nil, "conflicts with --token-file: use either flag")
	case c.tokenFile != "":
		return readToken(con, c.tokenFile)
	}
	token := c.token
	for _, name := range tokenVariables() {
		value, _ := con.env(name)
		token = cmp.Or(token, value)
	}
	return token, nil
}

func readToken(con *console, path string) (string, error) {
	data, err := con.readFile("--token-file", path, maxToken)
	token := strings.TrimSpace(string(data))
	if err == nil && token == "" {
		err = fault.Invalidf("--token-file", path, "%s is empty", path)
	}
	return token, err
}

// dial returns a client of the peer at address. Errors name the flag.
func (r *remote) dial(address string) (*client.Client, error) {
	opts, err := r.credentials.options(r.console)
	if err != nil {
		return nil, err
	}
	c, err := client.New(address, opts...)
	switch {
	case err == nil:
		return c, nil
	case fault.FieldOf(err) == "token":
		return nil, renameField(err, "--token")
	case strings.Contains(err.Error(), "transport level security"):
		return nil, fault.Invalidf("--token", nil, "needs TLS unless the peer runs on this host: see --tls-ca")
	}
	return nil, fault.In("--grpc", err)
}
