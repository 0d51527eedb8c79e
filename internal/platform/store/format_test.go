package store

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
)

// shelves is the format of a later program: version 2 adds a shelf to each book, version 3 a mark.
func shelves(fail error) Format[*Store] {
	add := func(text string, fail error) func(*Store) error {
		return func(s *Store) error {
			var edits []Edit
			err := s.All(func(name string, value []byte) error {
				if last := string(value[len(value)-1:]); last != text { // a repetition after a crash
					edits = append(edits, Edit{Name: name, Value: append([]byte(string(value)), text...)})
				}
				return nil
			})
			return errors.Join(err, s.Commit(edits, s.Floor()+1), fail)
		}
	}
	return Format[*Store]{Name: "database of books", Steps: []func(*Store) error{add("s", nil), add("m", fail)}}
}

// An upgrade migrates step by step and continues after a failure. The earlier program then refuses the database
// with the way out, and leaves it as it is.
func TestFormats(t *testing.T) {
	first := config(vfs.NewMem())
	s := open(t, first)
	require.NoError(t, s.Commit([]Edit{{"a", []byte("1")}, {"b", []byte("2")}}, 7))
	require.NoError(t, s.Close())

	failing, later := first, first
	failing.Format, later.Format = shelves(errors.New("the power fails")), shelves(nil)
	_, err := Open(failing)
	require.ErrorContains(t, err, "the power fails")
	require.Contains(t, storetest.Read(t, first.FS, first.Dir)["meta"], `"format":2`, "the step before is done")

	s = open(t, later)
	require.Equal(t, map[string]string{"a": "1sm", "b": "2sm"}, contentOf(t, s).values)
	require.Greater(t, s.Floor(), uint64(7))
	require.NoError(t, s.Commit([]Edit{{"c", []byte("3sm")}}, 0))
	require.NoError(t, s.Close())
	s = open(t, later)
	require.Len(t, contentOf(t, s).values, 3)
	require.NoError(t, s.Close())

	before := storetest.Read(t, first.FS, first.Dir)
	require.Contains(t, before["meta"], `"format":3`)
	_, err = Open(first)
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "the database of books in /home/books has format 3, this program reads formats 1 to 1: "+
		"run the later program again, or restore the directory from before its start")
	require.Equal(t, before, storetest.Read(t, first.FS, first.Dir))
}
