package registry

import (
	"fmt"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/instance"
)

// ledger is where instances are kept, each under namespace/service/id, none of which has a slash.
// There are ten thousand of about a kilobyte.
func (c Config) ledger() store.Config {
	return store.Config{
		Dir:      c.Dir,
		FS:       c.FS,
		Logger:   c.Logger,
		Role:     "peer",
		Owner:    c.Self,
		Prefix:   "instance/",
		MemTable: 2 << 20,
	}
}

// keep is the edit that keeps what has to outlive this process: neither status nor revision does.
func keep(i *instance.Instance) store.Edit {
	kept := *i
	kept.Status, kept.Revision = instance.StatusUnknown, 0
	return store.Edit{Name: i.Key.String(), Value: instance.Marshal(&kept)}
}

func forget(k instance.Key) store.Edit { return store.Edit{Name: k.String()} }

// restore reads what keep wrote.
func (r *Registry) restore(name string, value []byte) (*instance.Instance, error) {
	i, err := instance.Unmarshal(value)
	switch {
	case err != nil:
		return nil, err
	case i.Key.String() != name:
		return nil, fmt.Errorf("holds instance %s", i.Key)
	case i.Lease == "" || i.Peer != r.self:
		return nil, fmt.Errorf("holds an instance of peer %q with lease %q", i.Peer, i.Lease)
	}
	return i, nil
}
