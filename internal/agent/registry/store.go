package registry

import (
	"fmt"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/instance"
)

// diskConfig configures the store of the instances. Keys are namespace/service/id,
// three parts without slashes; typical content is ten thousand values of one
// kilobyte.
func (c Config) diskConfig() store.Config {
	return store.Config{
		Dir:      c.Dir,
		FS:       c.FS,
		Logger:   c.Logger,
		Role:     "peer",
		Owner:    c.Self,
		Prefix:   "instance/",
		Format:   store.Format[*store.Store]{Name: "database of instances"},
		MemTable: 2 << 20,
	}
}

// putEdit stores an instance without status and revision, which end with the
// process.
func putEdit(i *instance.Instance) store.Edit {
	kept := *i
	kept.Status, kept.Revision = instance.StatusUnknown, 0
	return store.Edit{Name: i.Key.String(), Value: kept.Marshal()}
}

func removeEdit(k instance.Key) store.Edit { return store.Edit{Name: k.String()} }

// restore reads the value of putEdit.
func restore(self, name string, value []byte) (*instance.Instance, error) {
	i, err := instance.Unmarshal(value)
	switch {
	case err != nil:
		return nil, err
	case i.Key.String() != name:
		return nil, fmt.Errorf("holds instance %s", i.Key)
	case i.Lease == "" || i.Peer != self:
		return nil, fmt.Errorf("holds an instance of peer %q with lease %q", i.Peer, i.Lease)
	}
	return i, nil
}
