package sell

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records"
)

// none is the value of --check for an offer without a check.
const none = "none"

// service is that of the instances which sell this kind.
func (s *seller) service() string { return "sell-" + s.name }

// document is the text of the offer file: an instance with a check and the offer, or the offer alone. again is the
// command that registers it after a change. It decides about the check.
func (s *seller) document(o records.Offer) (text []byte, again string, err error) {
	isHTTP := func(u *url.URL) bool { return (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" }
	if s.check == "" {
		s.check = none
		if s.endpoint.url != nil && isHTTP(s.endpoint.url) {
			s.check = s.endpoint.text
		}
	}
	verb, content := "offer update", any(o)
	if s.check != none {
		asked, err := url.Parse(s.check)
		if err != nil || !isHTTP(asked) {
			return nil, "", fault.Invalidf("--check", s.check, "must be an http or https URL, or none")
		}
		port, err := strconv.Atoi(asked.Port())
		if err != nil {
			port = map[string]int{"http": 80, "https": 443}[asked.Scheme]
		}
		verb, content = "instance register", struct {
			Service string            `json:"service"`
			ID      string            `json:"id"`
			Host    string            `json:"host"` // of the check: a peer checks the instance's own host alone
			Port    int               `json:"port"`
			Check   map[string]string `json:"health_check"`
			Offer   records.Offer     `json:"offer"`
		}{s.service(), o.ID, asked.Hostname(), port, map[string]string{"type": string(instance.HTTP), "endpoint": s.check}, o}
	}
	again = command.Program + " " + verb + " -f " + remote.Quoted(s.file) + s.Given()
	text, err = term.YAML(content)
	return append([]byte("# What this machine sells. After a change: "+again+"\n"), text...), again, fault.As("sell.document", fault.Internal, err)
}

// firstCheck waits until the offer of an instance is announced, or until it does not answer its check.
func (s *seller) firstCheck(ctx context.Context, c *operator.Client, k instance.Key, id string) (text string, announced bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	tick := time.NewTicker(checkStep)
	defer tick.Stop()
	for {
		switch ends, err := c.LastChecks(ctx, k); {
		case err == nil && len(ends) > 0 && !ends[0].Passing:
			return s.check + ": " + ends[0].State + " (" + ends[0].Cause + "): the offer is announced when it answers", false, nil
		case err == nil && len(ends) == 0: // still under way
		default: // it answered, or the caller may not know
			if _, err := c.Offers().Get(ctx, id); err == nil {
				return s.check + " answers: the offer ends after three failures", true, nil
			} else if kind := fault.KindOf(err); kind != fault.NotFound && kind != fault.Timeout {
				return "", false, err
			}
		}
		select {
		case <-ctx.Done():
			return s.check + " has not answered yet: the offer is announced when it does", false, nil
		case <-tick.C:
		}
	}
}
