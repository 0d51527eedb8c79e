package offer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const maxCatalog = 8 << 20 // bytes

// ARD makes the command ard.
func ARD(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "crawl FILE|URL", Short: "Offer what a catalog lists", Args: command.OneArg("FILE|URL"),
		Long: "Offer the MCP servers and A2A agents that a catalog lists, as offers of this peer. A second run\n" +
			"replaces them.",
		Example: "  " + command.Program + " ard crawl https://agents.example.com\n  " + command.Program + " ard crawl ai-catalog.json",
	}
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return command.Parent(&cobra.Command{Use: "ard", Short: "Import catalogs of Agentic Resource Discovery"}, r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		text, err := catalogOf(ctx, con, args[0])
		if err != nil {
			return err
		}
		offers, left, err := offersOf(text)
		if err != nil {
			return err
		}
		if left > 0 {
			con.Say("entries left out, because they are neither MCP servers nor A2A agents with an address: %d", left)
		}
		if len(offers) == 0 {
			return fault.Invalidf("FILE|URL", args[0], "lists no MCP server and no A2A agent")
		}
		return registerAll(ctx, r, c, offers)
	}))
}

// catalogOf reads a catalog. Of a URL no redirect is followed: it would name another publisher.
func catalogOf(ctx context.Context, con *term.Console, from string) ([]byte, error) {
	at, err := url.Parse(from)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" {
		return file.Read(con, "FILE|URL", from, maxCatalog)
	}
	if at.Path == "" || at.Path == "/" {
		at.Path = "/.well-known/ai-catalog.json"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, fault.Invalidf("FILE|URL", from, "%w", err)
	}
	// The caller names the site: it may be in the caller's own network, but no metadata service is a catalog.
	site := probe.New(probe.Config{Private: true, Loopback: true, Trusted: true})
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: site.DialContext, ForceAttemptHTTP2: true, DisableKeepAlives: true,
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fault.As("", fault.Unavailable, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxCatalog+1))
	switch {
	case err != nil:
		return nil, fault.As("", fault.Unavailable, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fault.New("", fault.Unavailable, "%s answers %s", at, resp.Status)
	case len(text) > maxCatalog:
		return nil, fault.New("", fault.TooLarge, "the catalog has more than %d bytes", maxCatalog)
	}
	return text, nil
}

// offersOf reads the entries of a catalog, draft 0.9 (github.com/ards-project/ard-spec), and counts those that it leaves out.
func offersOf(text []byte) (offers []records.Offer, left int, err error) {
	var catalog struct {
		Entries []struct {
			Identifier, DisplayName, Type, URL, Description, Version string
			Data                                                     struct {
				URL, Version string
				Remotes      []struct{ URL string }
			}
		}
	}
	if err := json.Unmarshal(text, &catalog); err != nil {
		return nil, 0, fault.Invalidf("FILE|URL", nil, "is no catalog: %w", err)
	}
	for _, e := range catalog.Entries {
		version := cmp.Or(e.Version, e.Data.Version, "1.0.0")
		o := records.Offer{Metadata: records.Metadata{ // of a stranger: a bad text must not keep the entry out
			Name: clean.Text(e.DisplayName, maxName), Description: clean.Text(e.Description, maxDescription), Version: clean.Text(version, maxVersion),
		}}
		at := ""
		switch e.Type {
		case "application/mcp-server-card+json":
			o.Metadata.Type, o.Metadata.Protocols = "mcp", []string{"mcp"}
			if len(e.Data.Remotes) > 0 {
				at = e.Data.Remotes[0].URL
			}
		case "application/a2a-agent-card+json":
			o.Metadata.Type, o.Metadata.Protocols, at = "agent", []string{"a2a"}, cmp.Or(e.URL, e.Data.URL)
		}
		if !strings.HasPrefix(at, "http") {
			left++
			continue
		}
		o.ID, o.Metadata.Endpoints = idOf(e.Identifier), []string{at}
		offers = append(offers, o)
	}
	return offers, left, nil
}

// Lengths of the texts of an offer, in bytes.
const (
	maxID          = 64
	maxName        = 128
	maxDescription = 1024
	maxVersion     = 64
)

// idOf makes the id of an offer of an identifier, urn:air:PUBLISHER:NAME.
func idOf(identifier string) string {
	id := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_' {
			return c
		}
		return '-'
	}, strings.ToLower(strings.TrimPrefix(identifier, "urn:air:")))
	if len(id) <= maxID {
		return id
	}
	sum := sha256.Sum256([]byte(identifier))
	return id[:maxID-17] + "-" + hex.EncodeToString(sum[:8])
}
