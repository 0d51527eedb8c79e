package trade

import (
	"context"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// A shelf keeps one value, and replaces it by compare-and-swap.
type shelf interface {
	// read returns the value and its revision: nil and 0 before the first one.
	read(ctx context.Context) (value []byte, revision int64, err error)
	// swap replaces the value of a revision durably. Errors: Conflict for another revision. After any other error
	// the value may have been replaced.
	swap(ctx context.Context, revision int64, value []byte) (next int64, err error)
}

// groupShelf keeps the value under a key of the coordination group, so that all machines with the identity of this
// peer meet there.
type groupShelf struct {
	coord.Service
	self string
}

// LedgerKey is the key of a provider's ledger in its coordination group.
func LedgerKey(provider string) string { return coord.LedgersPrefix + provider }

func (g groupShelf) read(ctx context.Context) ([]byte, int64, error) {
	r, err := coord.Range(ctx, g.Service, &api.RangeRequest{Key: []byte(LedgerKey(g.self))})
	if err != nil || len(r.GetKvs()) == 0 {
		return nil, 0, err
	}
	return r.Kvs[0].GetValue(), r.Kvs[0].GetModRevision(), nil
}

func (g groupShelf) swap(ctx context.Context, revision int64, value []byte) (int64, error) {
	result, err := g.Execute(ctx, coord.CommandOf(g.self, &api.TxnRequest{
		Compare: []*api.Compare{coord.WhileAt(LedgerKey(g.self), coord.Revision(revision))},
		Then:    []*api.TxnStep{coord.PutStep(LedgerKey(g.self), value, 0)},
	}))
	if err != nil {
		return 0, err
	}
	if err := coord.Unmet(result.GetTxn()); err != nil {
		return 0, err
	}
	return result.GetTxn().GetHeader().GetRevision(), nil
}

// disk is the private memory of this peer: the local addresses of its offers, where its ledger is, and the ledger
// itself while the peer is in no group. It opens its database with the first value, because most peers sell
// nothing. It is safe for concurrent use.
type disk struct {
	database func() (*store.Store, error) // opens it, or makes it

	mu     sync.Mutex // guards the fields below
	store  *store.Store
	values map[string][]byte
	swaps  int64 // revision of the ledger in this process
	closed bool
}

// Names of the values.
const (
	ledgerName  = "ledger"
	homeName    = "home"
	servePrefix = "serve/"
)

func openDisk(c store.Config) (*disk, error) {
	d := &disk{database: func() (*store.Store, error) { return store.Open(c) }, values: map[string][]byte{}, swaps: 1}
	if _, err := c.FS.Stat(c.Dir); err != nil {
		return d, nil // it is created with the first value
	}
	return d, d.open()
}

func (d *disk) open() (err error) {
	if d.closed {
		return fault.New("", fault.Unavailable, "the peer is shutting down")
	}
	if d.store != nil {
		return nil
	}
	if d.store, err = d.database(); err != nil {
		return err
	}
	return d.store.All(func(name string, value []byte) error {
		d.values[name] = value
		return nil
	})
}

// put makes a value durable; nil deletes it.
func (d *disk) put(name string, value []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.commit(name, value)
}

func (d *disk) commit(name string, value []byte) error {
	if err := d.open(); err != nil {
		return err
	}
	if err := d.store.Commit([]store.Edit{{Name: name, Value: value}}, d.store.Floor()); err != nil {
		return err
	}
	if d.values[name] = value; value == nil {
		delete(d.values, name)
	}
	return nil
}

// get returns a value that must not be changed; nil for none.
func (d *disk) get(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.values[name]
}

// len returns the number of values.
func (d *disk) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.values)
}

// read implements shelf.
func (d *disk) read(context.Context) ([]byte, int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.values[ledgerName], d.swaps, nil
}

// swap implements shelf.
func (d *disk) swap(_ context.Context, revision int64, value []byte) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if revision != d.swaps {
		return 0, fault.New("", fault.Conflict, "the ledger has changed")
	}
	if err := d.commit(ledgerName, value); err != nil {
		return 0, err
	}
	d.swaps++
	return d.swaps, nil
}

func (d *disk) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.store == nil {
		d.closed = true
		return nil
	}
	d.closed = true
	return d.store.Close()
}

// Examine reads the private memory of a provider as Open does, and changes nothing. Errors: as store.Open.
func Examine(dir, self string) error {
	return store.Examine(storeConfig(Config{Dir: dir}, self), func(string, []byte) error { return nil })
}

// storeConfig configures the database of a provider.
func storeConfig(c Config, owner string) store.Config {
	return store.Config{
		Dir: c.Dir, FS: vfs.Default, Logger: c.Logger, Role: "provider", Owner: owner, Prefix: "trade/",
		Format: store.Format[*store.Store]{Name: "database of trade"}, MemTable: 256 << 10,
	}
}
