package raftlog_test

import (
	"bytes"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/platform/disk"
	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestDiskBreaks: a disk that is full or fails from any write on ends the log with an error: no panic, no endless
// repetition. Then the folder opens with everything that was acknowledged, also in the same process once there is
// room. The error says whether it was for lack of room.
func TestDiskBreaks(t *testing.T) {
	for _, reason := range []error{syscall.ENOSPC, syscall.EIO} {
		refused, broken := 0, true
		for allowed := int64(0); broken; allowed += 1 + allowed/10 {
			mem := vfs.NewCrashableMem()
			s := founded(t, mem, 0)
			require.NoError(t, s.Close())
			acknowledged, err := fill(storetest.Breaking(mem, allowed, reason))
			if broken = err != nil; broken {
				require.ErrorIs(t, err, fault.Internal)
				require.ErrorContains(t, err, reason.Error())
				require.Equal(t, reason == syscall.ENOSPC, disk.Full(err), "after %d writes: %v", allowed, err)
				refused++
			}
			for what, fs := range map[string]*vfs.MemFS{"killed": storetest.Copy(mem), "power cut": mem.CrashClone(vfs.CrashCloneCfg{}), "freed": mem} {
				s, err := raftlog.Open(raftlog.Options{FS: fs, Dir: "data/group"})
				require.NoError(t, err, "%s after %d writes", what, allowed)
				last, err := s.LastIndex()
				require.NoError(t, err)
				require.GreaterOrEqual(t, last, acknowledged, "%s after %d writes", what, allowed)
				require.NoError(t, s.Close())
			}
		}
		t.Logf("%v: the disk broke at %d places", reason, refused)
		require.Greater(t, refused, 20)
	}
}

// fill writes entries for more than one table, a snapshot, and opens the folder again, until an error. It returns the
// last acknowledged entry.
func fill(fs vfs.FS) (last uint64, err error) {
	last = 1
	for range 2 {
		s, err := raftlog.Open(raftlog.Options{FS: fs, Dir: "data/group"})
		if err != nil {
			return last, err
		}
		for range 6 {
			e := pb.Entry{Index: new(last + 1), Term: new(uint64(1)), Data: bytes.Repeat([]byte("0123456789abcdef"), 1<<16)}
			if err := s.Save(nil, []*pb.Entry{&e}, true); err != nil {
				_ = s.Close()
				return last, err
			}
			last++
		}
		if err := s.Write(snapshot(last, 1), strings.NewReader("state")); err != nil {
			_ = s.Close()
			return last, err
		}
		if err := s.Close(); err != nil {
			return last, err
		}
	}
	return last, nil
}
