package coordtest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// keys are the promises about the keyspace.
func keys() map[string]func(*fixture) {
	return map[string]func(*fixture){
		"keys have revisions":            keyRevisions,
		"a write is all or nothing":      keyAtomic,
		"a write is guarded by revision": keyGuards,
		"a transaction has two branches": keyTxn,
		"write refuses":                  keyRefuses,
		"keys are deleted by span":       keyDelete,
		"range":                          keyRange,
		"range in pages":                 keyPages,
		"range in every order":           keyOrders,
		"range counts, and names":        keyCounts,
		"range of large values":          keysLarge,
		"range of a former revision":     keyFormer,
		"range refuses":                  keyRangeRefuses,
		"range of a compacted revision":  keyCompacted,
		"keys are bytes":                 keyBytes,
	}
}

// read reads the present state.
func (w *fixture) read(q ops.Query) ops.Page {
	w.t.Helper()
	page, header, err := w.Range(w.ctx(), q, ops.Linearizable)
	require.NoError(w.t, err)
	w.headed(header)
	return page
}

// all returns the keys with a prefix.
func (w *fixture) all(prefix string) []string {
	w.t.Helper()
	return keysOf(w.read(ops.Query{Span: coord.Under(prefix)}).Keys)
}

func keyRevisions(w *fixture) {
	lease := w.lease(w.Alice)
	r := w.must(w.Alice, write(put("b", "1"), bound("a", "2", lease)))
	require.Equal(w.t, []any{coord.FirstRevision + 1, 2}, []any{r.Revision, r.Changed})
	w.must(w.Bob, write(put("b", "3")))
	w.must(w.Bob, write(del(coord.Exactly("a"))))
	w.must(w.Bob, write(put("a", "4")))
	page := w.read(ops.Query{})
	require.Equal(w.t, coord.Revision(5), page.Revision)
	require.Equal(w.t, version{"a", "4", 5, 5, 1, 0}, shown(page.Keys[0]), "a key put again is a new one")
	require.Equal(w.t, version{"b", "3", 2, 3, 2, 0}, shown(page.Keys[1]))
	local, header, err := w.Range(w.ctx(), ops.Query{}, ops.Local)
	require.NoError(w.t, err)
	w.headed(header)
	require.LessOrEqual(w.t, local.Revision, page.Revision)
}

func keyAtomic(w *fixture) {
	w.mustNot(w.Alice, fault.Invalid, "then[1].put", write(put("a", "1"), put("a", "2")))
	w.mustNot(w.Alice, fault.Invalid, "then[1].key", write(put("a", "1"), put("", "2")))
	require.Equal(w.t, coord.FirstRevision, w.revision())
	require.Empty(w.t, w.all(""))
}

func keyGuards(w *fixture) {
	create := &ops.Txn{If: []ops.Compare{ops.IfRevision("a", 0)}, Then: []ops.Step{put("a", "1")}}
	w.must(w.Alice, create)
	w.unmet(w.Bob, 1, create)
	swap := func(at coord.Revision) *ops.Txn {
		return &ops.Txn{
			If:   []ops.Compare{ops.IfRevision("b", 0), ops.IfRevision("a", at)},
			Then: []ops.Step{put("a", "2")},
		}
	}
	w.unmet(w.Bob, 2, swap(3))
	w.must(w.Bob, swap(2))
	require.Equal(w.t, coord.Revision(3), w.revision())
}

// keyTxn: both branches, steps that see those before them, and the result of each, over every wire.
func keyTxn(w *fixture) {
	lease := w.lease(w.Alice)
	prefix, first := coord.Under("t/"), coord.Exactly("t/1")
	txn := &ops.Txn{
		If: []ops.Compare{
			{Span: first, Target: ops.Version, Operator: ops.Less, Number: 1}, {Span: first, Target: ops.LeaseOf},
			{Span: prefix, Target: ops.CreateRevision, Operator: ops.Equal},
		},
		Then: []ops.Step{
			put("t/1", "one"), bound("t/2", "two", lease),
			{Read: &ops.Read{Query: ops.Query{Span: prefix, Limit: 1, Descending: true}}},
		},
		Else: []ops.Step{
			{Read: &ops.Read{Query: ops.Query{Span: prefix, KeysOnly: true}}},
			{Delete: &first, Prev: true},
			{Read: &ops.Read{Query: ops.Query{Span: prefix, CountOnly: true}}},
		},
	}
	r := w.must(w.Alice, txn)
	made := r.Revision
	two := version{"t/2", "two", made, made, 1, lease}
	require.Equal(w.t, []any{true, 0, "", 2}, []any{r.Txn.Succeeded, r.Txn.Failed, r.Txn.Reason, r.Changed})
	require.Len(w.t, r.Txn.Steps, 3)
	require.Equal(w.t, []int{1, 1, 2}, []int{r.Txn.Steps[0].Count, r.Txn.Steps[1].Count, r.Txn.Steps[2].Count})
	require.Equal(w.t, []version{two}, shownAll(r.Txn.Steps[2].Keys))

	client := w.client(w.Alice)
	for range 2 { // the repeated command gets the same answer
		r, err := w.once(w.Alice, client, 1, txn)
		require.NoError(w.t, err)
		require.Equal(w.t, []any{false, 1, "version is 1, not < 1", 1}, []any{r.Txn.Succeeded, r.Txn.Failed, r.Txn.Reason, r.Changed})
		two.Value = ""
		require.Equal(w.t, []version{{"t/1", "", made, made, 1, 0}, two}, shownAll(r.Txn.Steps[0].Keys))
		require.Equal(w.t, []version{{"t/1", "one", made, made, 1, 0}}, shownAll(r.Txn.Steps[1].Keys))
		require.Equal(w.t, []int{1, 1, 0}, []int{r.Txn.Steps[1].Count, r.Txn.Steps[2].Count, len(r.Txn.Steps[2].Keys)})
	}
	values := &ops.Txn{If: []ops.Compare{{Span: prefix, Target: ops.Value, Operator: ops.NotEqual, Value: "two"}}, Else: []ops.Step{put("t/3", "")}}
	require.Equal(w.t, 1, w.unmet(w.Bob, 1, values).Changed)
	require.Equal(w.t, []string{"t/2", "t/3"}, w.all("t/"))

	third := coord.Exactly("t/3")
	within := &ops.Txn{If: []ops.Compare{ops.IfRevision("t/4", 0)}, Then: []ops.Step{{Delete: &third, Prev: true}, {Txn: &ops.Txn{}}}}
	r = w.must(w.Bob, write(put("t/4", ""), ops.Step{Txn: within}))
	require.Equal(w.t, 2, r.Changed)
	step := r.Txn.Steps[1]
	require.True(w.t, step.Succeeded, "its comparison looks at the state before the transaction")
	require.Equal(w.t, "t/3", step.Steps[0].Keys[0].Key)
	require.Equal(w.t, ops.StepResult{Succeeded: true}, step.Steps[1])
	require.Equal(w.t, []string{"t/2", "t/4"}, w.all("t/"))
}

func shownAll(keys []*coord.KeyValue) (all []version) {
	for _, kv := range keys {
		all = append(all, shown(kv))
	}
	return all
}

func keyRefuses(w *fixture) {
	w.mustNot(w.Alice, fault.Invalid, "then", write())
	w.must(w.Alice, write(put("largest", strings.Repeat("x", coord.MaxValue))))
	w.mustNot(w.Alice, fault.TooLarge, "then[0].value", write(put("a", strings.Repeat("x", coord.MaxValue+1))))
	w.mustNot(w.Alice, fault.TooLarge, "then[0].key", write(put(strings.Repeat("x", 2000), "")))
	w.mustNot(w.Alice, fault.NotFound, "then[0].lease", write(bound("a", "", 1<<40)))
}

func keyDelete(w *fixture) {
	w.must(w.Alice, write(put("a", ""), put("a/1", ""), put("a/2", ""), put("b", ""), put("c", "")))
	require.Equal(w.t, 2, w.must(w.Alice, write(del(coord.Under("a/")))).Changed)
	require.Equal(w.t, []string{"a", "b", "c"}, w.all(""))
	before := w.revision()
	require.Zero(w.t, w.must(w.Alice, write(del(coord.Exactly("none")))).Changed)
	require.Equal(w.t, before, w.revision(), "what changes nothing makes no revision")
	w.must(w.Alice, write(del(coord.Span{From: "b", To: "c"}), put("d", "")))
	require.Equal(w.t, []string{"a", "c", "d"}, w.all(""))
	w.must(w.Alice, write(del(coord.Span{From: "c"})))
	require.Equal(w.t, []string{"a"}, w.all(""))
	w.must(w.Alice, write(del(coord.Span{})))
	require.Empty(w.t, w.all(""))
}

func keyRange(w *fixture) {
	w.must(w.Alice, write(put("a", ""), put("a/1", ""), put("a/2", ""), put("b", ""), put("c", "")))
	for _, c := range []struct {
		span coord.Span
		want []string
	}{
		{coord.Span{}, []string{"a", "a/1", "a/2", "b", "c"}},
		{coord.Exactly("a"), []string{"a"}},
		{coord.Under("a/"), []string{"a/1", "a/2"}},
		{coord.Span{From: "a/2", To: "c"}, []string{"a/2", "b"}},
		{coord.Span{From: "a/2"}, []string{"a/2", "b", "c"}},
		{coord.Span{To: "a/2"}, []string{"a", "a/1"}},
		{coord.Span{From: "c", To: "a"}, nil},
		{coord.Exactly("none"), nil},
	} {
		page := w.read(ops.Query{Span: c.span})
		require.Equal(w.t, append([]string{}, c.want...), keysOf(page.Keys), "%q", c.span)
		require.Empty(w.t, page.Next)
	}
}

func keyPages(w *fixture) {
	var changes []ops.Step
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprint("k", i))
		changes = append(changes, put(want[i], ""))
	}
	w.must(w.Alice, write(changes...))
	q := ops.Query{Span: coord.Under("k"), Limit: 3}
	var got []string
	for {
		page := w.read(q)
		require.LessOrEqual(w.t, len(page.Keys), 3)
		got = append(got, keysOf(page.Keys)...)
		w.must(w.Alice, write(put("k99", page.Next))) // the pages show one state
		if page.Next == "" {
			break
		}
		q.Span.From, q.At = page.Next, page.Revision
	}
	require.Equal(w.t, want, got)
}

// keyOrders: pages in every order hold every key once, although the state changes meanwhile.
func keyOrders(w *fixture) {
	w.must(w.Alice, write(put("k1", "b"), put("k2", "")))
	w.must(w.Alice, write(put("k3", "b"), put("other", "z")))
	w.must(w.Alice, write(put("k1", "a")))
	for _, c := range []struct {
		order      apiv1.TxnRange_Order
		descending bool
		want       []string
	}{
		{apiv1.TxnRange_KEY, false, []string{"k1", "k2", "k3"}},
		{apiv1.TxnRange_KEY, true, []string{"k3", "k2", "k1"}},
		{apiv1.TxnRange_VERSION, false, []string{"k2", "k3", "k1"}},
		{apiv1.TxnRange_VERSION, true, []string{"k1", "k2", "k3"}},
		{apiv1.TxnRange_CREATE_REVISION, true, []string{"k3", "k1", "k2"}},
		{apiv1.TxnRange_MOD_REVISION, false, []string{"k2", "k3", "k1"}},
		{apiv1.TxnRange_VALUE, false, []string{"k2", "k1", "k3"}},
	} {
		for limit := range 4 {
			q := ops.Query{Span: coord.Under("k"), At: 4, Limit: limit, Order: c.order, Descending: c.descending}
			var got []string
			for page := (ops.Page{Next: " "}); page.Next != ""; q.From = page.Next {
				page = w.read(q)
				got = append(got, keysOf(page.Keys)...)
				w.must(w.Alice, write(put("k2", "now the largest"), put("k9", page.Next)))
			}
			require.Equal(w.t, c.want, got, "by %v, descending %v, pages of %d", c.order, c.descending, limit)
		}
	}
	_, _, err := w.Range(w.ctx(), ops.Query{Order: apiv1.TxnRange_VALUE + 1}, ops.Linearizable)
	w.refused(fault.Invalid, "order", err)
	_, _, err = w.Range(w.ctx(), ops.Query{Order: apiv1.TxnRange_VALUE, From: "absent"}, ops.Linearizable)
	w.refused(fault.Invalid, "from", err)
}

func keyCounts(w *fixture) {
	w.must(w.Alice, write(put("k1", "b"), put("k2", ""), put("other", "")))
	w.must(w.Alice, write(del(coord.Exactly("k2"))))
	for at, want := range map[coord.Revision]int{1: 0, 2: 2, 0: 1} {
		page := w.read(ops.Query{Span: coord.Under("k"), At: at, Limit: 1, CountOnly: true})
		require.Equal(w.t, want, page.Count, "at %d", at)
		require.Empty(w.t, page.Keys)
		require.Empty(w.t, page.Next)
	}
	page := w.read(ops.Query{Span: coord.Under("k"), At: 2, KeysOnly: true})
	require.Equal(w.t, []string{"k1", "k2"}, keysOf(page.Keys))
	require.Empty(w.t, page.Keys[0].Value)
	require.Equal(w.t, coord.Revision(2), page.Keys[0].ModRevision)
}

func keyFormer(w *fixture) {
	w.must(w.Alice, write(put("a", "1"), put("b", "1")))
	w.must(w.Alice, write(put("a", "2"), del(coord.Exactly("b")), put("c", "2")))
	page := w.read(ops.Query{At: 2})
	require.Equal(w.t, coord.Revision(2), page.Revision)
	require.Equal(w.t, []string{"a", "b"}, keysOf(page.Keys))
	require.Equal(w.t, "1", string(page.Keys[0].Value))
	require.Empty(w.t, w.read(ops.Query{At: coord.FirstRevision}).Keys)
}

func keyRangeRefuses(w *fixture) {
	w.must(w.Alice, write(put("a", "1")))
	for _, at := range []coord.Revision{3, -1} {
		_, _, err := w.Range(w.ctx(), ops.Query{At: at}, ops.Linearizable)
		w.refused(fault.Invalid, "at", err)
	}
}

func keyCompacted(w *fixture) {
	for range 3 {
		w.must(w.Alice, write(put("a", "1")))
	}
	require.NoError(w.t, w.Internal(w.ctx(), &ops.Compact{Revision: 3}))
	_, _, err := w.Range(w.ctx(), ops.Query{At: 2}, ops.Linearizable)
	require.ErrorIs(w.t, err, fault.NotFound)
	var compacted *coord.Compacted
	require.True(w.t, errors.As(err, &compacted), "%v", err)
	require.Equal(w.t, coord.Compacted{Revision: 3, Current: 4}, *compacted)
	require.Len(w.t, w.read(ops.Query{At: 3}).Keys, 1)
}

func keyBytes(w *fixture) {
	w.must(w.Alice, write(put("\x00\xff", "\xff\x00"), put("\xff\xff", "")))
	page := w.read(ops.Query{Span: coord.Under("\xff")})
	require.Equal(w.t, []string{"\xff\xff"}, keysOf(page.Keys))
	require.Equal(w.t, "\xff\x00", string(w.read(ops.Query{Span: coord.Exactly("\x00\xff")}).Keys[0].Value))
}
