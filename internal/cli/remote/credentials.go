package remote

import (
	"cmp"
	"crypto/tls"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
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
	Token     string
	TokenFile string
	Ca        string
	Cert, Key string
}

// flags adds the flags for credentials.
func (c *credentials) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.Token, "token", "", "bearer token, visible to other users of this host (environment BLACKHOLE_AUTH_TOKEN)")
	f.StringVar(&c.TokenFile, "token-file", "", "file with the bearer token")
	f.StringVar(&c.Ca, "tls-ca", "", "use TLS and trust these certificate authorities: a PEM file, or "+systemRoots)
	f.StringVar(&c.Cert, "cert", "", "use TLS with this client certificate: a PEM file")
	f.StringVar(&c.Key, "key", "", "private key of the certificate: a PEM file")
}

// options returns the options of a client for these credentials.
func (c *credentials) options(con *term.Console) ([]client.Option, error) {
	var opts []client.Option
	secure, err := c.tls()
	if err != nil {
		return nil, err
	}
	if secure != nil {
		opts = append(opts, client.WithTLS(secure))
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

// tls returns the settings of TLS, or nil for none.
func (c *credentials) tls() (*tls.Config, error) {
	if c.Ca == "" && c.Cert == "" && c.Key == "" {
		return nil, nil
	}
	ca := c.Ca
	if ca == systemRoots {
		ca = ""
	}
	secure, err := client.TLSFiles(ca, c.Cert, c.Key)
	return secure, exit.Fields{"ca": "--tls-ca", "cert": "", "key": ""}.Rename(err)
}

// secret returns the token, or "" for none.
func (c *credentials) secret(con *term.Console) (string, error) {
	switch {
	case c.Token != "" && c.TokenFile != "":
		return "", fault.Invalidf("--token", nil, "conflicts with --token-file: use either flag")
	case c.TokenFile != "":
		return ReadToken(con, "--token-file", c.TokenFile)
	}
	token := c.Token
	for _, name := range tokenVariables() {
		value, _ := con.Env(name)
		token = cmp.Or(token, value)
	}
	return token, nil
}

// ReadToken reads the token in the file that a flag names. Errors: Invalid naming the flag, without a token; of file.Read.
func ReadToken(con *term.Console, flag, path string) (string, error) {
	data, err := file.Read(con, flag, path, maxToken)
	token := strings.TrimSpace(string(data))
	if err == nil && token == "" {
		err = fault.Invalidf(flag, path, "%s is empty", path)
	}
	return token, err
}

// dial returns a client of the peer at address. Errors name the flag.
func (r *Peer) dial(address string) (*operator.Client, error) {
	opts, err := r.Credentials.options(r.Console)
	if err != nil {
		return nil, err
	}
	c, err := operator.New(address, opts...)
	switch {
	case err == nil:
		return c, nil
	case fault.FieldOf(err) == "token":
		return nil, exit.Rename(err, "--token")
	case strings.Contains(err.Error(), "transport level security"):
		return nil, fault.Invalidf("--token", nil, "needs TLS unless the peer runs on this host: see --tls-ca")
	}
	return nil, fault.In("--grpc", err)
}
