package cli

import (
	"cmp"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// tokenVariables are where a token comes from that no flag names, the first that is set: those
// from which a peer takes its own.
func tokenVariables() []string { return []string{config.Prefix + "AUTH_TOKEN", "MANIFEST_AUTH_TOKEN"} }

// maxToken bounds a file with a token, in bytes.
const maxToken = 16 << 10

// systemRoots as a value of --tls-ca are the authorities that the system trusts.
const systemRoots = "system"

// credentials are how a command shows who it is, and whom it trusts.
type credentials struct {
	token     string
	tokenFile string
	ca        string
	cert, key string
}

// flags adds the flags for credentials.
func (c *credentials) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.token, "token", "", "bearer token; others on this host can read it (environment BLACKHOLE_AUTH_TOKEN)")
	f.StringVar(&c.tokenFile, "token-file", "", "file with the bearer token")
	f.StringVar(&c.ca, "tls-ca", "", "speak TLS with peers that these authorities vouch for: a PEM file, or "+systemRoots)
	f.StringVar(&c.cert, "cert", "", "speak TLS and show this certificate: a PEM file")
	f.StringVar(&c.key, "key", "", "key of the certificate: a PEM file")
}

// options are how to dial with these credentials.
func (c *credentials) options(a App) ([]grpc.DialOption, error) {
	var opts []grpc.DialOption
	if c.ca != "" || c.cert != "" || c.key != "" {
		ca := c.ca
		if ca == systemRoots {
			ca = ""
		}
		tls, err := client.TLSFiles(ca, c.cert, c.key)
		if err != nil {
			return nil, renameField(err, credentialFlag)
		}
		opts = append(opts, client.WithTLS(tls))
	}
	token, err := c.secret(a)
	if err != nil {
		return nil, err
	}
	if token != "" {
		opts = append(opts, client.WithToken(token))
	}
	return opts, nil
}

func credentialFlag(field string) string {
	switch field {
	case "ca":
		return "--tls-ca"
	case "cert", "key":
		return "--" + field
	}
	return field
}

// secret is the token, "" for none.
func (c *credentials) secret(a App) (string, error) {
	switch {
	case c.token != "" && c.tokenFile != "":
		return "", fault.Invalidf("--token", nil, "does not go with --token-file")
	case c.tokenFile != "":
		return readToken(c.tokenFile)
	}
	token := c.token
	for _, name := range tokenVariables() {
		value, _ := a.env(name)
		token = cmp.Or(token, value)
	}
	return token, nil
}

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fault.Invalidf("--token-file", path, "%w", err)
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	token := strings.TrimSpace(string(data))
	switch {
	case err != nil:
		return "", fault.Invalidf("--token-file", path, "%w", err)
	case len(data) > maxToken:
		return "", fault.Invalidf("--token-file", path, "%s has more than %d bytes", path, maxToken)
	case token == "":
		return "", fault.Invalidf("--token-file", path, "%s is empty", path)
	}
	return token, nil
}

// dial makes a client of the peer that the flags name. Errors name the flag.
func (r *remote) dial(address string) (*client.Client, error) {
	opts, err := r.credentials.options(r.app)
	if err != nil {
		return nil, err
	}
	c, err := client.New(address, opts...)
	switch {
	case err == nil:
		return c, nil
	case fault.FieldOf(err) == "token":
		return nil, renameField(err, func(string) string { return "--token" })
	case strings.Contains(err.Error(), "transport level security"):
		return nil, fault.Invalidf("--token", nil, "goes over TLS only, unless the peer is on this host: see --tls-ca")
	}
	return nil, fault.In("--grpc", err)
}
