package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/disk"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// onThisMachine reports whether a gRPC address is that of a peer on this machine.
func onThisMachine(address string) bool {
	host, _, err := net.SplitHostPort(cmp.Or(address, client.DefaultAddress))
	return strings.HasPrefix(address, "unix:") || err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// askSettings asks the peer for the settings that it runs with.
func (f *facts) askSettings(ctx context.Context, c *operator.Client, _ []string) (err error) {
	f.running, err = remote.Running(ctx, c)
	return err
}

// checkDNS asks the name server of the peer.
func checkDNS(f *facts) finding {
	address := f.running["dns"]
	switch address {
	case "":
		return finding{}
	case config.Off:
		return finding{State: fine, Text: "the name server is off"}
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return finding{}
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	if err := f.machine.resolves(address); err != nil {
		return finding{
			State: broken, Text: fmt.Sprintf("the name server gives no answer at %s: %v", address, exit.Cause(err)),
			Do: "look for a firewall or another program at this port, or restart the peer",
		}
	}
	return finding{State: fine, Text: "the name server answers at " + address}
}

// checkDisk looks at the free space for the data directory.
func checkDisk(f *facts) finding {
	dir := f.running["data"]
	if f.down != nil {
		dir = f.settings.Data
	}
	if dir == "" || f.down == nil && !filepath.IsAbs(dir) { // relative to the directory in which the peer was started
		return finding{}
	}
	free, err := f.machine.free(dir)
	if err != nil {
		return finding{}
	}
	found := finding{State: fine, Text: fmt.Sprintf("%.1f GB free for %s", float64(free)/1e9, dir)}
	if free < disk.Low {
		found.State = broken
		found.Do = "make room: on a full disk the peer refuses offers, and its part in the group stops"
	}
	return found
}

// checkVersions compares the program of the peer with those of the connected peers.
func checkVersions(f *facts) finding {
	others := map[string]int{}
	for _, p := range f.peers {
		if _, version, ok := strings.Cut(p.Agent, "/"); ok && version != f.status.Version {
			others[version]++
		}
	}
	if len(others) == 0 {
		return finding{State: fine, Text: "no connected peer runs another version than " + f.status.Version}
	}
	list := make([]string, 0, len(others))
	for version, n := range others {
		list = append(list, fmt.Sprintf("%s at %d", version, n))
	}
	slices.Sort(list)
	return finding{State: fine, Text: fmt.Sprintf("%s here, of %s connected: %s", f.status.Version, fault.Counted(len(f.peers), "peer"), strings.Join(list, ", "))}
}

// checkData examines the data directory of a peer that does not run. A running peer may use
// another directory.
func checkData(f *facts) finding {
	if !f.absent() {
		return finding{}
	}
	dir := f.settings.Data
	switch missing, err := f.machine.writable(dir); {
	case err != nil:
		return finding{State: broken, Text: err.Error(), Do: "choose another one with --data, or correct its owner"}
	case missing:
		return finding{State: fine, Text: dir + " does not exist yet: the first start creates it"}
	default:
		return finding{State: fine, Text: dir + " is writable"}
	}
}

// checkPorts opens the ports of a peer that does not run.
func checkPorts(f *facts) finding {
	if !f.absent() {
		return finding{}
	}
	var taken []string
	list := ports(f.settings)
	for _, p := range list {
		if err := f.machine.open(p.network, p.address); err != nil {
			taken = append(taken, fmt.Sprintf("%s (%s): %v", p.setting, p.network, err))
		}
	}
	if len(taken) > 0 {
		return finding{State: broken, Text: strings.Join(taken, "; "), Do: "stop the program that uses the port, or choose another address"}
	}
	return finding{State: fine, Text: fault.Counted(len(list), "port") + " free"}
}

// port is a port of a peer.
type port struct{ setting, network, address string }

// ports lists the ports that a peer with these settings opens.
func ports(c config.Config) []port {
	list := []port{{"http", "tcp", c.HTTP}, {"grpc", "tcp", c.GRPC}, {"dns", "udp", c.DNS}, {"dns", "tcp", c.DNS}}
	listen := c.Listen
	if len(listen) == 0 {
		host := "0.0.0.0"
		if c.Profile == "dev" {
			host = "127.0.0.1"
		}
		listen = []string{"/ip4/" + host + "/tcp/4801"}
		if c.Profile == "public" {
			listen = append(listen, "/ip4/"+host+"/udp/4801/quic-v1")
		}
	}
	for _, a := range listen {
		if parts := strings.Split(a, "/"); len(parts) >= 5 && (parts[1] == "ip4" || parts[1] == "ip6") {
			list = append(list, port{"listen", parts[3], net.JoinHostPort(parts[2], parts[4])})
		}
	}
	return slices.DeleteFunc(list, func(p port) bool { return cmp.Or(p.address, config.Off) == config.Off })
}

// answerTime bounds a question to a service of this machine, such as the name server. It needs some milliseconds.
const answerTime = 2 * time.Second

// machine is what doctor examines besides the peer.
type machine interface {
	// writable reports whether a directory accepts files. missing: it does not exist, and a parent accepts it.
	writable(dir string) (missing bool, err error)
	// free is the space for a directory on its disk, in bytes. Errors: Unsupported on systems that do not tell.
	free(dir string) (uint64, error)
	// open opens a port and closes it again.
	open(network, address string) error
	// resolves reports whether a name server answers at an address.
	resolves(address string) error
	// answers reports whether a TCP service takes a connection.
	answers(address string) error
}

// thisMachine is the machine of this process.
type thisMachine struct{}

func (thisMachine) writable(dir string) (missing bool, err error) {
	dir, missing = existing(dir)
	f, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return missing, err
	}
	return missing, errors.Join(f.Close(), os.Remove(f.Name()))
}

// existing is a directory or, if it is missing, the parent that exists.
func existing(dir string) (found string, missing bool) {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir, missing
		}
		missing, dir = true, filepath.Dir(dir)
	}
}

func (thisMachine) free(dir string) (uint64, error) {
	dir, _ = existing(dir)
	return disk.Free(dir)
}

// resolves sends one question. Each answer counts, a refusal too.
func (thisMachine) resolves(address string) error {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(config.Default().DNSDomain[0]), dns.TypeSOA)
	_, _, err := (&dns.Client{Timeout: answerTime}).Exchange(q, address)
	return err
}

func (thisMachine) answers(address string) error {
	c, err := net.DialTimeout("tcp", address, answerTime)
	if err != nil {
		return err
	}
	return c.Close()
}

func (thisMachine) open(network, address string) error {
	if network == "udp" {
		c, err := net.ListenPacket(network, address)
		if err != nil {
			return err
		}
		return c.Close()
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	return l.Close()
}
