package sell

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records"
)

// none is the value of --check for an offer without a check.
const none = "none"

// document is the text of the offer file: an instance with a check and the offer, or the offer alone. again is the
// command that registers it after a change. It decides about the check.
func (s *seller) document(o records.Offer) (text []byte, again string, err error) {
	isHTTP := func(u *url.URL) bool { return (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" }
	endpoint, err := url.Parse(s.endpoint)
	if err != nil {
		return nil, "", fault.Invalidf("--endpoint", s.endpoint, "%w", err)
	}
	switch {
	case s.check == "" && isHTTP(endpoint):
		s.check = s.endpoint
	case s.check == "":
		s.check = none
	case s.check != none:
		if u, err := url.Parse(s.check); err != nil || !isHTTP(u) {
			return nil, "", fault.Invalidf("--check", s.check, "must be a URL of HTTP, or none")
		}
	}
	if s.check == none {
		text, err = block(o)
		return comment("offer update", s.file, text), command.Program + " offer update -f " + s.file, err
	}
	asked, err := url.Parse(s.check) // the peer only checks the instance's own host, so the instance is what is checked
	if err != nil {
		return nil, "", fault.Invalidf("--check", s.check, "%w", err)
	}
	port, err := strconv.Atoi(asked.Port())
	if err != nil {
		port = map[string]int{"http": 80, "https": 443}[asked.Scheme]
	}
	text, err = block(struct {
		Service string            `json:"service"`
		ID      string            `json:"id"`
		Host    string            `json:"host"`
		Port    int               `json:"port,omitempty"`
		Check   map[string]string `json:"health_check"`
		Offer   records.Offer     `json:"offer"`
	}{"sell-" + s.name, o.ID, asked.Hostname(), port, map[string]string{"type": string(instance.HTTP), "endpoint": s.check}, o})
	return comment("instance register", s.file, text), command.Program + " instance register -f " + s.file, err
}

func comment(verb, file string, text []byte) []byte {
	return append([]byte("# What this machine sells. After a change: "+command.Program+" "+verb+" -f "+file+"\n"), text...)
}

// block writes a value in the form of its JSON as YAML in blocks, which people edit.
func block(value any) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fault.As("sell.block", fault.Internal, err)
	}
	var root yaml.Node // JSON is YAML, and nodes keep the order of the fields
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, fault.As("sell.block", fault.Internal, err)
	}
	plain(&root)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&root); err != nil {
		return nil, fault.As("sell.block", fault.Internal, err)
	}
	return out.Bytes(), nil
}

// plain removes brackets and needless quotes.
func plain(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		plain(child)
	}
}

// firstCheck waits until the offer of an instance is announced, or until its check fails.
func (s *seller) firstCheck(ctx context.Context, c *client.Client, k instance.Key, id string) (text string, announced bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	tick := time.NewTicker(checkStep)
	defer tick.Stop()
	for {
		switch ends, err := c.LastChecks(ctx, k); {
		case err == nil && len(ends) > 0 && !ends[0].Passing:
			return s.check + " fails (" + ends[0].Cause + "): the offer is announced when it passes", false, nil
		case err == nil && len(ends) == 0: // still under way
		default: // it passed, or the caller may not know
			if _, err := c.Get(ctx, id); err == nil {
				return s.check + " passes: the offer ends when it fails", true, nil
			} else if kind := fault.KindOf(err); kind != fault.NotFound && kind != fault.Timeout {
				return "", false, err
			}
		}
		select {
		case <-ctx.Done():
			return s.check + " has not passed yet: the offer is announced when it does", false, nil
		case <-tick.C:
		}
	}
}
