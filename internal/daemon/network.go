package daemon

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/invite"
	"github.com/blackhole/blackhole/internal/platform/p2p/proof"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// keyFile holds the keys of the network in a data directory.
const keyFile = "network.key"

// membership is this peer's part in its network.
type membership struct {
	name   network.Name
	keys   *access.NetworkKeys
	proofs *proof.Prover
	// private is derived from the first key at the start, for a closed network; nil: an open one.
	private []byte
}

// startKeys reads the keys of the network. A peer without a way into an existing network begins one, and generates
// its key.
func (p *parts) startKeys(context.Context) (err error) {
	path := filepath.Join(p.config.Data, keyFile)
	p.network.name = p.config.NetworkName()
	if p.config.Network.KeyFile != "" {
		key, err := access.ReadPlainKey(p.config.Network.KeyFile)
		if err == nil {
			err = storeKey(path, key)
		}
		if err != nil {
			return err
		}
	}
	if generatesKey(&p.config) {
		key, err := identity.NewKey(rand.Reader)
		if err != nil {
			return err
		}
		switch err := access.CreateNetworkKey(path, key); {
		case err == nil:
			p.log.Info("generated the key of the network", "network", p.network.name.String(), "file", path)
		case fault.KindOf(err) != fault.Exists:
			return err
		}
	}
	p.network.keys, err = access.OpenNetworkKeys(path, access.Options{Now: p.now, Logger: p.log.With("part", "access")})
	if err != nil {
		return err
	}
	keys := p.network.keys.Get()
	if expect := p.config.Coordination.Expect; expect > 0 && len(keys) == 0 && needsKey(&p.config) {
		return fault.Invalidf("coordination.expect", expect, "needs the key of the network: name a file of it (network.key_file), or join by an invitation (--join)")
	}
	if !p.config.Network.Closed {
		return nil
	}
	if len(keys) == 0 {
		return fault.Invalidf("network.closed", true, "needs the key of the network in %s: join by an invitation (--join)", path)
	}
	p.network.private, err = keys[0].Private(p.network.name)
	return err
}

// generatesKey reports whether a peer without a key generates one: it begins a network alone.
func generatesKey(c *config.Config) bool {
	return len(c.Bootstrap) == 0 && c.Coordination.Expect == 0 && needsKey(c)
}

// needsKey reports whether a network has something to protect with a key: one of one machine without authentication has not.
func needsKey(c *config.Config) bool {
	return c.Profile != "dev" || c.Auth.On() || c.Network.Closed
}

// coordinates reports whether a peer of this network takes part in coordination.
func (m *membership) coordinates(c *config.Config) bool {
	return c.Coordination.On(c.Profile, len(m.keys.Get()) > 0)
}

// trusts returns a function that returns nil for a peer with the key of the network. On one machine without
// authentication there is no key.
func (m *membership) trusts(c *config.Config) func(context.Context, peer.ID) error {
	open := c.Profile == "dev" && !c.Auth.On()
	return func(ctx context.Context, id peer.ID) error {
		if open && len(m.keys.Get()) == 0 {
			return nil
		}
		return m.proofs.Check(ctx, id)
	}
}

// startProofs proves the key to other peers, and lets the coordination plane ask for their proofs.
func (p *parts) startProofs(context.Context) (err error) {
	p.network.proofs, err = proof.New(proof.Config{
		Host: p.node.Host(), Network: p.network.name, Keys: p.network.keys.Get, Now: p.now, Logger: p.log.With("part", "proof"),
	})
	if err != nil {
		return err
	}
	p.onClose(p.network.proofs.Close)
	return nil
}

// Join makes a data directory that of a peer of the inviting network: it stores the key, the name and the addresses. A
// repeated call changes nothing. Errors: Conflict for a directory with the key of another network; Invalid.
func Join(dataDir string, i invite.Invitation) error {
	const op = "daemon.Join"
	if err := os.MkdirAll(dataDir, dirMode); err != nil {
		return fault.As(op, fault.Invalid, fmt.Errorf("data: %w", err))
	}
	if i.Key != nil {
		if err := storeKey(filepath.Join(dataDir, keyFile), i.Key); err != nil {
			return fault.Wrap(op, err)
		}
	}
	return fault.Wrap(op, config.Joined{Name: i.Name, Profile: i.Profile, Bootstrap: i.Addresses, Closed: i.Closed}.Save(dataDir))
}

// storeKey creates the file of a key, unless it accepts that key already.
func storeKey(path string, k identity.Key) error {
	err := access.CreateNetworkKey(path, k)
	if fault.KindOf(err) != fault.Exists {
		return err
	}
	keys, err := access.ReadNetworkKeys(path)
	switch {
	case err != nil:
		return err
	case identity.Contains(keys, k):
		return nil
	}
	return fault.New("", fault.Conflict, "%s holds another key than the invitation, or network.key_file: leave it out to stay in the network of this key, or remove the file; another data directory has another identity", path)
}

// NetworkKeys returns the keys of the network in a data directory; none for a peer without. Error: Invalid for a
// malformed file, or one that other users can read.
func NetworkKeys(dataDir string) ([]identity.Key, error) {
	keys, err := access.ReadNetworkKeys(filepath.Join(dataDir, keyFile))
	if fault.KindOf(err) == fault.NotFound && err != nil {
		return nil, nil
	}
	return keys, fault.Wrap("daemon.NetworkKeys", err)
}
