package offer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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

const (
	maxCatalog = 8 << 20 // bytes
	maxCard    = 1 << 20 // bytes of a card that an entry refers to
	maxCards   = 256     // cards that one catalog has this program fetch
)

// ARD makes the command ard.
func ARD(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "crawl FILE|URL", Short: "Offer what a catalog lists", Args: command.OneArg("FILE|URL"),
		Long: "Offer the MCP servers and A2A agents that a catalog lists, as offers of this peer. A second run\n" +
			"replaces them.",
		Example: "  " + command.Program + " ard crawl https://agents.example.com\n  " + command.Program + " ard crawl ard.json",
	}
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return command.Parent(&cobra.Command{Use: "ard", Short: "Import catalogs of Agentic Resource Discovery"}, r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		text, err := catalogOf(ctx, con, args[0])
		if err != nil {
			return err
		}
		offers, left, down, err := offersOf(text, func(at string) ([]byte, error) { return fetch(ctx, at, maxCard) })
		if err != nil {
			return err
		}
		if down > 0 {
			con.Say("entries left out, because the site with their card does not answer: %d", down)
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
	if at.Path != "" && at.Path != "/" {
		return fetch(ctx, at.String(), maxCatalog)
	}
	at.Path = "/.well-known/ard.json" // draft 0.91
	text, err := fetch(ctx, at.String(), maxCatalog)
	if fault.KindOf(err) == fault.NotFound {
		at.Path = "/.well-known/ai-catalog.json" // draft 0.9
		text, err = fetch(ctx, at.String(), maxCatalog)
	}
	return text, err
}

// fetch reads a document of a site. Errors: NotFound if the site has none there; Unprocessable if it does not answer, or answers otherwise; TooLarge.
func fetch(ctx context.Context, at string, most int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fault.Invalidf("FILE|URL", at, "%w", err)
	}
	// The caller names the site: it may be in the caller's own network, but no metadata service is a catalog.
	site := probe.New(probe.Config{Private: true, Loopback: true, Trusted: true})
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: site.DialContext, ForceAttemptHTTP2: true, DisableKeepAlives: true,
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fault.New("", fault.Unprocessable, "the site %s does not answer: %w", req.URL.Host, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	switch {
	case err != nil:
		return nil, fault.New("", fault.Unprocessable, "the answer of the site %s broke off: %w", req.URL.Host, err)
	case resp.StatusCode == http.StatusNotFound:
		return nil, fault.New("", fault.NotFound, "%s answers %s", at, resp.Status)
	case resp.StatusCode != http.StatusOK:
		return nil, &status{fault.New("", fault.Unprocessable, "%s answers %s", at, resp.Status)}
	case len(text) > most:
		return nil, fault.New("", fault.TooLarge, "%s has more than %d bytes", at, most)
	}
	return text, nil
}

// status is the error of a site that answers, otherwise than with a document.
type status struct{ error }

// Unwrap implements the interface of package errors.
func (s *status) Unwrap() error { return s.error }

// remotes is the part of an MCP server's card that says where the server is.
type remotes struct {
	URL, Version string
	Remotes      []struct{ URL string }
}

// serverAt returns where an MCP server of an entry by reference is: its card says it, or the reference is the server itself, which does
// not answer a GET with a card. It is empty if the site does not answer.
func serverAt(at string, fetch func(string) ([]byte, error)) string {
	text, err := fetch(at)
	var answers *status
	if err != nil && !errors.As(err, &answers) {
		return ""
	}
	var card remotes
	if json.Unmarshal(text, &card) == nil {
		for _, r := range card.Remotes {
			return r.URL
		}
		at = cmp.Or(card.URL, at)
	}
	return at
}

// offersOf reads the entries of a catalog, draft 0.9 (github.com/ards-project/ard-spec) or later, and counts those that it leaves out: of other
// kinds, and those whose site is down.
func offersOf(text []byte, fetch func(at string) ([]byte, error)) (offers []records.Offer, left, down int, err error) {
	var catalog struct {
		Entries []struct {
			Identifier, DisplayName, Type, URL, Description, Version string
			Data                                                     remotes
		}
	}
	if err := json.Unmarshal(text, &catalog); err != nil {
		return nil, 0, 0, fault.Invalidf("FILE|URL", nil, "is no catalog: %w", err)
	}
	cards := 0
	for _, e := range catalog.Entries {
		version := cmp.Or(e.Version, e.Data.Version, "1.0.0")
		o := records.Offer{Metadata: records.Metadata{ // of a stranger: a bad text must not keep the entry out
			Name: clean.Text(e.DisplayName, maxName), Description: clean.Text(e.Description, maxDescription), Version: clean.Text(version, maxVersion),
		}}
		at := ""
		switch e.Type {
		case "application/mcp-server-card+json":
			o.Metadata.Type, o.Metadata.Protocols = "mcp", []string{"mcp"}
			switch {
			case len(e.Data.Remotes) > 0:
				at = e.Data.Remotes[0].URL
			case strings.HasPrefix(e.URL, "http") && cards < maxCards:
				cards++
				if at = serverAt(e.URL, fetch); at == "" {
					down++
					continue
				}
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
	return offers, left, down, nil
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
