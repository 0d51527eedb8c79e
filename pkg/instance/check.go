package instance

import (
	"cmp"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Defaults of a Check.
const (
	DefaultCheckInterval      = 10 * time.Second
	defaultCheckTimeout       = 5 * time.Second
	defaultHealthyThreshold   = 1
	defaultUnhealthyThreshold = 3

	maxEndpoint = 256
)

// ParseCheckType parses a type name in either case. Errors: Invalid, field
// "type".
func ParseCheckType(text string) (CheckType, error) {
	for _, t := range []CheckType{HTTP, TCP, GRPC, Script} {
		if strings.EqualFold(string(t), text) {
			return t, nil
		}
	}
	return "", fault.Invalidf("type", shorten(text), "must be HTTP, TCP, gRPC or script")
}

// known reports whether this version can run checks of a type.
func (t CheckType) known() bool {
	_, err := ParseCheckType(string(t))
	return err == nil
}

// Normalize validates a check and applies defaults. After an error c is
// undefined. It returns the first error: Invalid, field "type", "endpoint",
// "interval", "timeout", "healthy_threshold" or "unhealthy_threshold".
func (c *Check) Normalize() error {
	t, err := ParseCheckType(string(c.Type))
	if err != nil {
		return err
	}
	c.Type = t
	if err := fault.Text("endpoint", c.Endpoint, maxEndpoint); err != nil {
		return err
	}
	if c.Type == Script && !c.endpointFits() {
		return fault.Invalidf("endpoint", c.Endpoint, "must be a name in agent.checks.scripts, a setting of the peer that has the commands")
	}
	if !c.endpointFits() {
		return fault.Invalidf("endpoint", c.Endpoint, "is not an endpoint of a %s check", c.Type)
	}
	c.Interval = cmp.Or(c.Interval, DefaultCheckInterval)
	if err := between("interval", c.Interval, time.Second, time.Hour); err != nil {
		return err
	}
	c.Timeout = cmp.Or(c.Timeout, min(defaultCheckTimeout, c.Interval))
	if err := between("timeout", c.Timeout, 10*time.Millisecond, c.Interval); err != nil {
		return err
	}
	if err := threshold("healthy_threshold", &c.HealthyThreshold, defaultHealthyThreshold); err != nil {
		return err
	}
	return threshold("unhealthy_threshold", &c.UnhealthyThreshold, defaultUnhealthyThreshold)
}

func threshold(field string, n *int, standard int) error {
	if *n == 0 {
		*n = standard
	}
	if *n < 1 || *n > 100 {
		return fault.Invalidf(field, *n, "must be 1 to 100")
	}
	return nil
}

func (c *Check) endpointFits() bool {
	switch c.Type {
	case HTTP:
		return c.Endpoint == "" || isPath(c.Endpoint) || isURL(c.Endpoint)
	case Script:
		return c.Endpoint != "" && len(c.Endpoint) <= maxShort && consists(c.Endpoint, isID)
	case GRPC:
		target, _, _ := strings.Cut(c.Endpoint, "/")
		return isTarget(target)
	default:
		return isTarget(c.Endpoint)
	}
}

// host returns the host of the endpoint, or "".
func (c *Check) host() string {
	if c.Type == HTTP {
		u, err := url.Parse(c.Endpoint)
		if err != nil {
			return ""
		}
		return u.Hostname()
	}
	target, _, _ := strings.Cut(c.Endpoint, "/")
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return ""
	}
	return host
}

// usesPort reports whether the check connects to the port of the instance.
func (c *Check) usesPort() bool {
	switch c.Type {
	case HTTP:
		return c.Endpoint == "" || c.Endpoint[0] == '/'
	case Script:
		return false
	}
	target, _, _ := strings.Cut(c.Endpoint, "/")
	return target == ""
}

// isPath accepts a path with a query. "//host" would be a URL without a scheme.
func isPath(text string) bool {
	u, err := url.Parse(text)
	return err == nil && text[0] == '/' && u.Host == "" && u.Fragment == ""
}

func isURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Fragment != "" {
		return false
	}
	if _, err := normalizeHost(u.Hostname()); err != nil {
		return false
	}
	return u.Port() == "" || isPort(u.Port())
}

// isTarget accepts "", a port or host:port.
func isTarget(text string) bool {
	if text == "" || isPort(text) {
		return true
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || !isPort(port) {
		return false
	}
	_, err = normalizeHost(host)
	return err == nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}
