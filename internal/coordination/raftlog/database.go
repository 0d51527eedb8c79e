package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
)

// database is the Pebble store, with one reused batch.
type database struct {
	*pebble.DB
	errors  *diskErrors
	batch   *pebble.Batch
	scratch []byte
}

func (d *database) read(key string, use func([]byte) error) error {
	b, closer, err := d.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	defer func() { _ = closer.Close() }()
	return use(b)
}

func (d *database) failed(err error) error {
	d.errors.fail(err)
	return d.errors.err()
}

func (d *database) set(key, value []byte) { _ = d.batch.Set(key, value, nil) } // a batch fails at commit

func (d *database) setMessage(key []byte, m proto.Message) {
	b, err := proto.MarshalOptions{}.MarshalAppend(d.scratch[:0], m)
	if err != nil {
		d.errors.fail(err) // impossible: a required field is missing
		return
	}
	d.scratch = b
	d.set(key, b)
}

// deleteEntries deletes [from, to) in the batch.
func (d *database) deleteEntries(from, to uint64) error {
	if err := d.batch.DeleteRange(entryKey(from), entryKey(to), nil); err != nil {
		return fault.As("", fault.Internal, err)
	}
	return nil
}

func (d *database) commit(sync bool) error {
	if err := d.errors.err(); err != nil {
		return err
	}
	options := pebble.NoSync
	if sync {
		options = pebble.Sync
	}
	if err := d.batch.Commit(options); err != nil {
		d.errors.fail(err)
	}
	return d.errors.err()
}

// diskErrors keeps the first disk error. Pebble reports its gravest errors through its logger.
type diskErrors struct {
	log   *slog.Logger
	first atomic.Pointer[error]
}

func (s *diskErrors) fail(err error) {
	err = fault.As("raftlog", fault.Internal, err)
	s.first.CompareAndSwap(nil, &err)
}

func (s *diskErrors) err() error {
	if p := s.first.Load(); p != nil {
		return *p
	}
	return nil
}

// Infof implements pebble.Logger.
func (s *diskErrors) Infof(format string, args ...any) { s.log.Debug(fmt.Sprintf(format, args...)) }

// Errorf implements pebble.Logger.
func (s *diskErrors) Errorf(format string, args ...any) { s.log.Error(fmt.Sprintf(format, args...)) }

// Fatalf implements pebble.Logger, which expects no return. It must not end the process here: it keeps the
// error for all later calls of Storage.
func (s *diskErrors) Fatalf(format string, args ...any) { s.fail(fmt.Errorf(format, args...)) }
