package machine_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// every returns one command of each kind.
func every() []proto.Message {
	return []proto.Message{
		&apiv1.TxnRequest{
			Compare: []*apiv1.Compare{
				coordtest.IfRevision("a", 3), coordtest.IfRevision("b", 0), coordtest.IfHolds("db", 7),
				{Key: []byte("x"), RangeEnd: []byte("y"), Target: apiv1.Compare_VALUE, Operator: apiv1.Compare_GREATER, Value: []byte("v")},
				{RangeEnd: []byte{0}, Target: apiv1.Compare_LEASE, Operator: apiv1.Compare_NOT_EQUAL, Number: 4},
			},
			Then: []*apiv1.TxnStep{put("a", "1", 2), put("\xff", "", 0), del(coord.Span{From: "x"}), del(coord.Span{})},
			Else: []*apiv1.TxnStep{
				{Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte("a"), KeepValue: true, KeepLease: true, PrevKv: true}}},
				{Step: &apiv1.TxnStep_Range{Range: &apiv1.TxnRange{
					Key: []byte("a"), RangeEnd: []byte("b"), Revision: 4, Limit: 2, Order: apiv1.TxnRange_VERSION, Descending: true, KeysOnly: true, CountOnly: true,
					MinModRevision: 1, MaxModRevision: 2, MinCreateRevision: 3, MaxCreateRevision: 4,
				}}},
				nested(&apiv1.TxnBranch{
					Compare: []*apiv1.Compare{coordtest.IfRevision("c", 3)}, Then: []*apiv1.TxnStep{put("c", "1", 0)}, Else: []*apiv1.TxnStep{del(coord.Exactly("c"))},
				}),
			},
		},
		&coordv1.Compact{Revision: 5},
		&apiv1.LeaseGrantRequest{Id: 9, TtlMs: 5000},
		&apiv1.LeaseRevokeRequest{Id: 9},
		&coordv1.Expire{Term: 4, Leases: []*coordv1.LeaseRef{{Id: 1, Granted: 2}, {}}},
		&apiv1.LockRequest{TimeoutMs: -1, Name: "db", LeaseId: 1, Mode: apiv1.ShareMode_SHARE_MODE_PERMIT, Permits: 2, Metadata: []byte("m")},
		&apiv1.UnlockRequest{Name: "db", LeaseId: 1, FencingToken: 3},
		&coordv1.Cancel{Name: "db", Lease: 1, Token: 3},
		&apiv1.PublishInstancesRequest{
			LeaseId: 1, Generation: 2, Deletes: [][]byte{[]byte("directory/n/s/c")}, Replace: true, Key: []byte("directory/"), RangeEnd: []byte{0},
			Puts: []*apiv1.DirectoryEntry{
				entry("n", "s", "a", 1), {Key: []byte("directory/n/s/b"), Adopt: true}, {Key: []byte("directory/n/s/d"), Since: 5},
			},
		},
		&apiv1.SetRequirementRequest{Name: "r", Min: 3, Query: &agentv1.DiscoverRequest{ServiceName: "s"}},
		&apiv1.DeleteRequirementRequest{Name: "r"},
		&apiv1.OpenClientRequest{},
		&apiv1.CloseClientRequest{},
		&coordv1.ClientsExpire{Term: 1, IdleSince: 2},
		&coordv1.Configure{Limits: coord.DefaultLimits().Message()},
		&coordv1.SetAddresses{Multiaddrs: [][]byte{{1}, {2, 3}}},
		&coordv1.BumpIncarnation{Incarnation: 1},
		&coordv1.Dissolve{Successor: []byte(groupID(1)), Reached: 5},
	}
}

func TestCommandsRoundTrip(t *testing.T) {
	for _, op := range every() {
		want := coordtest.Once(1, 2, coordtest.Command(alice, op))
		b, err := encode(want)
		require.NoError(t, err)
		got, err := decode(b)
		require.NoError(t, err)
		require.True(t, proto.Equal(want, got), "%v %v", want, got)
		again, err := encode(got)
		require.NoError(t, err)
		require.Equal(t, b, again)
		_, err = decode(append(bytes.Clone(b), 0xa0, 0x06, 0x01)) // field 100
		require.ErrorIs(t, err, fault.Invalid, "a field that is not known changes what the command means")
	}
	_, err := encode(new(coordv1.Command))
	require.ErrorIs(t, err, fault.Unsupported)
	_, err = encode(coordtest.Command("\xff", &apiv1.OpenClientRequest{}))
	require.ErrorIs(t, err, fault.Invalid)
	for _, b := range [][]byte{nil, {0x22, 0x02, 0x0a, 0x00}, {0x22, 0x02, 0x12, 0x00}, {0x4a, 0x02, 0x18, 0x03}, {0xff}} {
		_, err := decode(b)
		require.ErrorIs(t, err, fault.Invalid, "%x", b)
	}
}

// The log holds a caller's request unchanged, without unknown fields.
func TestEncodeKeepsTheRequest(t *testing.T) {
	request := &apiv1.TxnRequest{
		Attempt: &apiv1.Attempt{Client: 1, Sequence: 2},
		Then:    []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte("a"), Value: []byte("1")}}}},
	}
	known := proto.Clone(request)
	request.ProtoReflect().SetUnknown([]byte{0xa0, 0x06, 0x01})
	request.GetThen()[0].ProtoReflect().SetUnknown([]byte{0xa0, 0x06, 0x01})
	cmd := &coordv1.Command{Attempt: request.GetAttempt(), Owner: alice, Request: &coordv1.Command_Txn{Txn: request}}
	b, level, err := machine.Current().Encode(cmd, 3)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 3), b[:3])
	require.Equal(t, coord.FirstLevel, level)
	b = b[3:]
	var logged coordv1.Command
	require.NoError(t, proto.Unmarshal(b, &logged))
	require.True(t, proto.Equal(known, logged.GetTxn()))
	require.Equal(t, alice, logged.GetOwner())
	require.EqualValues(t, coord.FirstLevel, logged.GetLevel())

	got, err := decode(b)
	require.NoError(t, err)
	require.True(t, proto.Equal(cmd, got))
}

// nested is a transaction as a step of another one.
func nested(b *apiv1.TxnBranch) *apiv1.TxnStep {
	return &apiv1.TxnStep{Step: &apiv1.TxnStep_Txn{Txn: b}}
}

// Every member refuses a contradictory request, and none stops.
func TestMalformedRequestsAreRefused(t *testing.T) {
	for field, m := range map[string]*coordv1.Command{
		"mode":                       {Request: &coordv1.Command_TryLock{TryLock: &apiv1.TryLockRequest{Name: "n", LeaseId: 1, Mode: 7}}},
		"compare[0].key":             {Request: &coordv1.Command_Txn{Txn: &apiv1.TxnRequest{Compare: []*apiv1.Compare{{}}}}},
		"compare[0].target":          {Request: &coordv1.Command_Txn{Txn: &apiv1.TxnRequest{Compare: []*apiv1.Compare{{Key: []byte("a"), Target: 256}}}}},
		"compare[0].lock":            {Request: &coordv1.Command_Txn{Txn: &apiv1.TxnRequest{Compare: []*apiv1.Compare{{Key: []byte("a"), Lock: "l"}}}}},
		"then[0].step":               {Request: &coordv1.Command_Txn{Txn: &apiv1.TxnRequest{Then: []*apiv1.TxnStep{{}}}}},
		"else[0].key":                {Request: &coordv1.Command_Txn{Txn: &apiv1.TxnRequest{Else: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Delete{Delete: &apiv1.TxnDelete{}}}}}}},
		"else[0].order":              {Request: &coordv1.Command_Txn{Txn: &apiv1.TxnRequest{Else: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Range{Range: &apiv1.TxnRange{Key: []byte("a"), Order: -1}}}}}}},
		"else[0].txn.compare[0].key": {Request: &coordv1.Command_Txn{Txn: &apiv1.TxnRequest{Else: []*apiv1.TxnStep{nested(&apiv1.TxnBranch{Compare: []*apiv1.Compare{{}}})}}}},
		"then[0].txn.else[0].step":   {Request: &coordv1.Command_Txn{Txn: &apiv1.TxnRequest{Then: []*apiv1.TxnStep{nested(&apiv1.TxnBranch{Else: []*apiv1.TxnStep{{}}})}}}},
		"min":                        {Request: &coordv1.Command_SetRequirement{SetRequirement: &apiv1.SetRequirementRequest{Name: "r"}}},
	} {
		m.Owner = alice
		b, _, err := machine.Current().Encode(m, 0)
		require.NoError(t, err)
		cmd, err := decode(b)
		require.NoError(t, err)
		r, _ := machine.New().Apply(1, 1, cmd)
		require.ErrorIs(t, r.Err, fault.Invalid)
		require.Equal(t, field, fault.FieldOf(r.Err))
	}
}

// An unknown command is refused before the log. In the log it stops the member.
func TestUnknownCommandsAreRefused(t *testing.T) {
	later := &coordv1.Command{Level: coord.FirstLevel}
	later.ProtoReflect().SetUnknown([]byte{0x82, 0x06, 0x00}) // field 96: a request of a later version
	_, _, err := machine.Current().Encode(later, 0)
	require.ErrorIs(t, err, fault.Unsupported)
	_, _, err = machine.Current().Encode(&coordv1.Command{Request: &coordv1.Command_KeepAlive{KeepAlive: &apiv1.LeaseKeepAliveRequest{Id: 1}}}, 0)
	require.ErrorIs(t, err, fault.Unsupported, "a keepalive is no entry of the log")
	b, err := proto.Marshal(later)
	require.NoError(t, err)
	_, err = decode(b)
	require.ErrorIs(t, err, fault.Invalid)
	b, err = proto.Marshal(&coordv1.Command{Level: coord.FirstLevel + 1})
	require.NoError(t, err)
	_, err = decode(b)
	require.ErrorIs(t, err, fault.Unsupported)
	r, _ := machine.New().Apply(1, 1, later)
	require.ErrorIs(t, r.Err, fault.Unsupported)
}

// Applying a decoded command never panics.
func FuzzDecode(f *testing.F) {
	for _, op := range every() {
		b, err := encode(coordtest.Once(1, 1, coordtest.Command(alice, op)))
		require.NoError(f, err)
		f.Add(b)
	}
	snapshot := story(f).Snapshot()
	f.Fuzz(func(t *testing.T, b []byte) {
		cmd, err := decode(b)
		if err != nil {
			require.Contains(t, []fault.Kind{fault.Invalid, fault.Unsupported}, fault.KindOf(err))
			return
		}
		m, err := machine.Restore(snapshot)
		require.NoError(t, err)
		r, _ := m.Apply(1000, 1, cmd)
		if r.Err != nil {
			require.NotEqual(t, fault.Internal, fault.KindOf(r.Err))
		}
		again, err := machine.Restore(m.Snapshot())
		require.NoError(t, err)
		require.Equal(t, m.StateHash(), again.StateHash())
	})
}

// framed puts the frames of a snapshot around bytes, so that a fuzzer gets past the checksums.
func framed(data []byte) []byte {
	b := []byte("BHCOORD\x01")
	crc := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	for {
		part := data[:min(len(data), 64<<10)]
		data = data[len(part):]
		crc = crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), part)
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = binary.BigEndian.AppendUint32(b, crc)
		if b = append(b, part...); len(part) == 0 {
			return b
		}
	}
}

// unframed returns the single frame of a small snapshot.
func unframed(snapshot []byte) []byte { return snapshot[16 : len(snapshot)-8] }

// A restored snapshot is written unchanged, and the machine continues.
func FuzzRestore(f *testing.F) {
	f.Add(unframed(story(f).Snapshot()))
	f.Add(unframed(machine.New().Snapshot()))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := framed(data)
		m, err := machine.Restore(b)
		if err != nil {
			require.ErrorIs(t, err, fault.Invalid)
			return
		}
		require.Equal(t, b, m.Snapshot())
		index, term := m.Index()
		for _, op := range every() {
			index++
			m.Apply(index, term, coordtest.Command(alice, op))
			m.Apply(index, term, coordtest.Once(1, index, coordtest.Command(alice, op)))
		}
		for _, l := range m.Leases() {
			index++
			m.Apply(index, term, coordtest.Command(l.Owner, &apiv1.LeaseRevokeRequest{Id: int64(l.ID)}))
		}
		_, err = m.Events(coord.Watch{From: m.Compacted() + 1, Prev: true})
		require.NoError(t, err)
		_, err = m.Range(machine.Query{At: m.Compacted()})
		require.NoError(t, err)
	})
}

// Arbitrary frames give an error, with memory in proportion to the input.
func FuzzRestoreFrames(f *testing.F) {
	f.Add(story(f).Snapshot())
	f.Add([]byte("BHCOORD\x04\xff\xff\xff\xff\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := machine.Restore(b); err == nil {
			require.Equal(t, b, m.Snapshot())
		}
	})
}

// A claimed length allocates no memory in advance.
func TestRestoreChecksLengths(t *testing.T) {
	head := unframed(machine.New().Snapshot())
	claim := binary.AppendUvarint(bytes.Clone(head[:len(head)-4]), 1) // one lease
	claim = append(claim, 1, 1)
	claim = binary.AppendUvarint(claim, 1<<62) // its owner's name
	b := framed(claim)
	require.Less(t, testing.AllocsPerRun(1, func() {
		_, err := machine.Restore(b)
		require.ErrorIs(t, err, fault.Invalid)
	}), 200.0)
}
