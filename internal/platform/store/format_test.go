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

// A file says its name and version in the first line. A file of a later version is refused whatever its content,
// and everything else is damage.
func TestSeal(t *testing.T) {
	f := Format[[]byte]{Name: "list of books"}
	const golden = "list of books, format 1\nada\n"
	require.Equal(t, golden, string(f.Seal([]byte("ada\n"))))
	content, is, err := f.Unseal("/home/list", []byte(golden))
	require.NoError(t, err)
	require.Equal(t, uint32(1), is)
	require.Equal(t, "ada\n", string(content))
	content, _, err = f.Unseal("/home/list", f.Seal(nil))
	require.NoError(t, err)
	require.Empty(t, content)

	for _, later := range []string{"list of books, format 2\n\x00", "list of books, format 4294967295\n", "list of books, format 0\nada\n"} {
		_, _, err = f.Unseal("/home/list", []byte(later))
		require.ErrorIs(t, err, fault.Unsupported, later)
		require.ErrorContains(t, err, "the list of books in /home/list has format ")
		require.ErrorContains(t, err, ", this program reads formats 1 to 1: run the later program again")
	}
	for _, damaged := range []string{"", "ada\n", "list of books, format 1", "list of books, format \n", "list of books, format 01\n",
		"list of books, format -1\n", "list of books, format 4294967296\n", "list of cooks, format 1\n"} {
		_, _, err = f.Unseal("/home/list", []byte(damaged))
		require.ErrorIs(t, err, fault.Invalid, damaged)
		require.ErrorContains(t, err, `/home/list does not begin with the line "list of books, format 1"`)
	}
}
