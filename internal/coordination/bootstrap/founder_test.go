package bootstrap

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// member is the disk of a member.
type member struct {
	id    uint64
	bound bool
}

func (m *member) Member() uint64 { return m.id }

func (m *member) Assume(id uint64) error {
	if !m.bound {
		m.id = id
	}
	return nil
}

// start starts the founder of a peer on a file system, with a disk of its own; nil for none.
func start(t *testing.T, fs vfs.FS, n Network, self peer.ID, disk *member) (*Founder, *Store) {
	t.Helper()
	s, err := OpenStore(fs, testPlace(), self, n)
	require.NoError(t, err)
	o := Options{Store: s, Settle: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	if disk != nil {
		o.Disk = disk
	}
	return New(o), s
}

// silent are candidates without a word.
func silent(ids ...peer.ID) (all []Candidate) {
	for _, id := range ids {
		all = append(all, Candidate{Peer: id})
	}
	return all
}

// TestMajorityOfTheListFounds: a founder begins when a majority of the list is in sight, as an initial voter.
func TestMajorityOfTheListFounds(t *testing.T) {
	_, ids := keyring(t, 4)
	n := listed(ids[:3]...)
	disk := &member{id: 7}
	f, _ := start(t, vfs.NewMem(), n, ids[1], disk)
	id, may := f.Founding()
	require.True(t, may)
	require.Equal(t, n.ID(), id)
	now := time.Now()
	require.NoError(t, f.Look(now.Add(time.Hour), silent(ids[3], ids[1])))
	require.Contains(t, f.Lacks(), "1 of 3 founders in sight, 2 needed")
	_, known := f.Group()
	require.False(t, known, "neither a stranger nor the peer itself counts")
	require.NoError(t, f.Look(now, silent(ids[2])))
	<-f.Founded()
	got, _ := f.Group()
	require.Equal(t, n.Membership(), got)
	v, _ := got.Voter(ids[1])
	require.Equal(t, v.RaftID, disk.id)
	_, may = f.Founding()
	require.False(t, may)

	one, _ := start(t, vfs.NewMem(), listed(ids[0]), ids[0], &member{id: 8})
	require.NoError(t, one.Look(now, nil))
	<-one.Founded()
}

// TestFoundersJoinWhatExists: a founder to which a trusted peer shows a group of other founders founds no second one, and is no
// initial voter of the first one.
func TestFoundersJoinWhatExists(t *testing.T) {
	_, ids := keyring(t, 4)
	old := listed(ids[:3]...).Membership()
	disk := &member{id: 7}
	f, _ := start(t, vfs.NewMem(), listed(ids...), ids[3], disk)
	require.ErrorIs(t, f.Offer(old.Encode(), false), fault.Unauthentic)
	require.NoError(t, f.Offer(old.Encode(), true))
	got, _ := f.Group()
	require.Equal(t, old, got)
	require.Equal(t, uint64(7), disk.id)
	require.NoError(t, f.Offer(listed(ids...).Membership().Encode(), true), "later groups are package formation's subject")
	require.NoError(t, f.Look(time.Now(), silent(ids...)))
	got, _ = f.Group()
	require.Equal(t, old, got)
}

// TestFirstPeerFoundsAlone: without a list the lowest of the peers that settle founds.
func TestFirstPeerFoundsAlone(t *testing.T) {
	_, ids := keyring(t, 2)
	now := time.Now()
	low, _ := start(t, vfs.NewMem(), unlisted(), ids[0], &member{id: 7})
	high, _ := start(t, vfs.NewMem(), unlisted(), ids[1], &member{id: 8})
	for range 9 {
		require.NoError(t, low.Look(now, silent(ids[1:]...)))
		require.NoError(t, high.Look(now, silent(ids[:1]...)))
		now = now.Add(time.Second)
	}
	<-low.Founded()
	_, known := high.Group()
	require.False(t, known)
	require.NoError(t, high.Look(now, nil), "the lower one is gone")
	require.NoError(t, high.Look(now.Add(time.Second), nil))
	_, known = high.Group()
	require.False(t, known)
	require.NoError(t, high.Look(now.Add(2*time.Second), nil))
	got, known := high.Group()
	require.True(t, known)
	require.Equal(t, []Voter{{ids[1], 8}}, got.Voters)
}

// TestAbstains: a peer that may not found waits for a group, however long.
func TestAbstains(t *testing.T) {
	_, ids := keyring(t, 3)
	lost := vfs.NewMem()
	_, s := start(t, lost, listed(ids[:2]...), ids[0], &member{id: 7})
	require.NoError(t, s.Close())
	require.NoError(t, lost.RemoveAll(testPlace().Dir))
	for why, f := range map[string]func() *Founder{
		"not among the founders": func() *Founder { f, _ := start(t, vfs.NewMem(), listed(ids[:2]...), ids[2], &member{id: 1}); return f },
		"founds no group":        func() *Founder { f, _ := start(t, vfs.NewMem(), unlisted(), ids[0], nil); return f },
		"may have voted":         func() *Founder { f, _ := start(t, lost, listed(ids[:2]...), ids[0], &member{id: 1}); return f },
	} {
		one := f()
		require.Contains(t, one.Abstains(), why)
		for i := range 9 {
			require.NoError(t, one.Look(time.Now().Add(time.Duration(i)*time.Hour), silent(ids...)))
		}
		_, known := one.Group()
		require.False(t, known, why)
		_, may := one.Founding()
		require.False(t, may)
	}
}

// TestDiskFailureEndsFounding: without the group on the disk there is none.
func TestDiskFailureEndsFounding(t *testing.T) {
	_, ids := keyring(t, 1)
	d := &disk{MemFS: vfs.NewCrashableMem()}
	f, _ := start(t, d, listed(ids...), ids[0], &member{id: 7})
	d.failAt = 2
	require.ErrorIs(t, f.Look(time.Now(), nil), errDisk)
	_, known := f.Group()
	require.False(t, known)
}

// TestOneGroupAndNoSecondVote plays founders that stop, start, and lose the disk of the member or all data, at any moment. All
// that know a group know the same one, and no raft id of an initial voter ever has two disks.
func TestOneGroupAndNoSecondVote(t *testing.T) {
	founded, amnesiacs := 0, 0
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		_, ids := keyring(t, 1+rng.IntN(5))
		n := listed(ids...)
		type node struct {
			fs   *vfs.MemFS
			disk *member
			*Founder
			store *Store
		}
		nodes := make([]*node, len(ids))
		voted := map[uint64]*member{}
		for i := range nodes {
			nodes[i] = &node{fs: vfs.NewCrashableMem(), disk: &member{id: rng.Uint64() | 1<<63}}
		}
		for range 60 {
			i := rng.IntN(len(nodes))
			p := nodes[i]
			switch roll := rng.IntN(10); {
			case p.Founder == nil:
				p.Founder, p.store = start(t, p.fs, n, ids[i], p.disk)
				if p.store.Amnesia() != "" {
					amnesiacs++
				}
			case roll == 0: // stops, and perhaps loses something
				require.NoError(t, p.store.Close())
				p.Founder = nil
				if rng.IntN(3) > 0 {
					p.disk = &member{id: rng.Uint64() | 1<<63}
				}
				if rng.IntN(3) == 0 {
					require.NoError(t, p.fs.RemoveAll(testPlace().Dir))
					p.disk = &member{id: rng.Uint64() | 1<<63}
				}
			default: // looks around
				var others []Candidate
				for j, o := range nodes {
					if j == i || o.Founder == nil || rng.IntN(3) == 0 {
						continue
					}
					if g, known := o.Group(); known {
						require.NoError(t, p.Offer(g.Encode(), rng.IntN(2) == 0))
					} else if _, may := o.Founding(); may {
						others = append(others, Candidate{Peer: ids[j]})
					}
				}
				require.NoError(t, p.Look(time.Now(), others))
			}
			if p.Founder == nil {
				continue
			}
			if g, known := p.Group(); known {
				require.Equal(t, n.Membership(), g, "seed %d", seed)
				if v, _ := g.Voter(ids[i]); v.RaftID == p.disk.id {
					p.disk.bound = true
					require.True(t, voted[v.RaftID] == nil || voted[v.RaftID] == p.disk, "seed %d: peer %d votes with two disks", seed, i)
					voted[v.RaftID] = p.disk
				}
			}
		}
		founded += len(voted)
	}
	require.Greater(t, founded, 500)
	require.Greater(t, amnesiacs, 100)
}
