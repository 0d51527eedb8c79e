package p2p

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"sync"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxValuesBytes bounds the keys and values of Values. A peer has a list of known peers and one announcement.
// The file is at most twice as long, because JSON encodes values in base64.
const maxValuesBytes = 2 << 20

// Values is the datastore of a node: the values of the DHT and the known peers, in memory, with a file that repeats them
// after a restart. All of it is soft state: publishers repeat values, and bootstrap peers lead into the network too. So
// a disk that is full or fails costs the file and one warning, never a value or the peer. Sync and Close write the file.
// Other peers put values as often as they like, so Put must not. All keys and values together are bounded.
//
// It is safe for concurrent use.
type Values struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	kept    map[ds.Key][]byte // guarded by mu
	bytes   int               // keys and values in kept; guarded by mu
	changed bool              // since the last save; guarded by mu
	failing bool              // the last save failed; guarded by mu
}

// valuesFormat is the version of the file: a JSON object of keys and values after the first line.
func valuesFormat() store.Format[[]byte] { return store.Format[[]byte]{Name: "values of the DHT"} }

// OpenValues reads the file, and begins empty without one or with a damaged one.
//
// Errors: Unsupported for a file of a later version.
func OpenValues(path string, log *slog.Logger) (*Values, error) {
	v := &Values{path: path, log: log, kept: map[ds.Key][]byte{}}
	kept, err := readValues(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case fault.KindOf(err) == fault.Unsupported:
		return nil, err
	case err != nil:
		log.Warn("the file of DHT values is unreadable; the values return with the next announcements", "err", err)
	default:
		for key, value := range kept {
			v.set(ds.NewKey(key), value)
		}
	}
	return v, nil
}

func readValues(path string) (kept map[string][]byte, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > 2*maxValuesBytes {
		return nil, fault.New("", fault.TooLarge, "%s has %d bytes, more than %d", path, info.Size(), 2*maxValuesBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	content, _, err := valuesFormat().Unseal(path, data)
	if err != nil {
		return nil, err
	}
	return kept, json.Unmarshal(content, &kept)
}

// Get implements ds.Datastore.
func (v *Values) Get(_ context.Context, key ds.Key) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	value, found := v.kept[key]
	if !found {
		return nil, ds.ErrNotFound
	}
	return value, nil
}

// Has implements ds.Datastore.
func (v *Values) Has(ctx context.Context, key ds.Key) (bool, error) {
	return ds.GetBackedHas(ctx, v, key)
}

// GetSize implements ds.Datastore.
func (v *Values) GetSize(ctx context.Context, key ds.Key) (int, error) {
	return ds.GetBackedSize(ctx, v, key)
}

// Query implements ds.Datastore.
func (v *Values) Query(_ context.Context, q query.Query) (query.Results, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	entries := make([]query.Entry, 0, len(v.kept))
	for key, value := range v.kept {
		entry := query.Entry{Key: key.String(), Size: len(value)}
		if !q.KeysOnly {
			entry.Value = value
		}
		entries = append(entries, entry)
	}
	return query.NaiveQueryApply(q, query.ResultsWithEntries(q, entries)), nil
}

// Put implements ds.Datastore. Errors: TooLarge for a value without room.
func (v *Values) Put(_ context.Context, key ds.Key, value []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if need := v.bytes + v.sizeOf(key, value); need > maxValuesBytes {
		return fault.New("p2p.Put", fault.TooLarge, "the values of the DHT would need %d bytes, more than %d", need, maxValuesBytes)
	}
	v.set(key, value)
	v.changed = true
	return nil
}

// sizeOf returns by how many bytes a value makes the values larger. The caller holds mu.
func (v *Values) sizeOf(key ds.Key, value []byte) int {
	if old, found := v.kept[key]; found {
		return len(value) - len(old)
	}
	return len(key.String()) + len(value)
}

// set keeps a value. The caller holds mu, or owns v.
func (v *Values) set(key ds.Key, value []byte) {
	v.bytes += v.sizeOf(key, value)
	v.kept[key] = value
}

// Delete implements ds.Datastore. It never fails.
func (v *Values) Delete(_ context.Context, key ds.Key) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if old, found := v.kept[key]; found {
		v.bytes -= len(key.String()) + len(old)
		delete(v.kept, key)
		v.changed = true
	}
	return nil
}

// Batch implements ds.Batching.
func (v *Values) Batch(context.Context) (ds.Batch, error) { return ds.NewBasicBatch(v), nil }

// Sync implements ds.Datastore. It never fails: it logs the begin and the end of failures.
func (v *Values) Sync(context.Context, ds.Key) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.changed {
		return nil
	}
	err := v.write()
	switch {
	case err != nil && !v.failing:
		v.log.Warn("saving the values of the DHT failed; they stay in memory and are lost at a restart: check disk space and permissions", "err", err)
	case err == nil && v.failing:
		v.log.Info("the values of the DHT are saved again", "file", v.path)
	}
	v.changed, v.failing = err != nil, err != nil
	return nil
}

// Close saves the values. They stay usable.
func (v *Values) Close() error { return v.Sync(context.Background(), ds.Key{}) }

// write replaces the file. The caller holds mu. A crash leaves the earlier file, the new one, or one that is unreadable.
func (v *Values) write() error {
	kept := make(map[string][]byte, len(v.kept))
	for key, value := range v.kept {
		kept[key.String()] = value
	}
	content, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	temporary := v.path + ".new"
	if err := os.WriteFile(temporary, valuesFormat().Seal(content), 0o600); err != nil {
		return errors.Join(err, os.Remove(temporary)) // a part of the file would take space
	}
	return os.Rename(temporary, v.path)
}
