package offers

import (
	"io"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// disk opens a registry on the real file system, so that fsync is measured.
func disk(b *testing.B, services int) *Registry {
	c := config(b, nil)
	c.Dir, c.MaxServices = b.TempDir(), services
	c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	return open(b, c, epoch())
}

func BenchmarkRegister(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			r, now, next := disk(b, MaxMaxServices), epoch(), 0
			offers := make([]records.Offer, size)
			for b.Loop() {
				if next+size > MaxMaxServices {
					b.StopTimer()
					r, next = disk(b, MaxMaxServices), 0
					b.StartTimer()
				}
				for i := range offers {
					offers[i] = at(offer(strconv.Itoa(next)), 52.52, 13.40)
					next++
				}
				register(b, r, now, offers...)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*size), "us/service")
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	r, now := disk(b, 1), epoch()
	register(b, r, now, offer("a"))
	for b.Loop() {
		_, err := r.Update(offer("a"), now)
		require.NoError(b, err)
	}
}

// BenchmarkRefresh measures Due with 100 stale services: one fsync.
func BenchmarkRefresh(b *testing.B) {
	r, now := disk(b, 100), epoch()
	var offers []records.Offer
	for i := range 100 {
		offers = append(offers, offer(strconv.Itoa(i)))
	}
	done(r, now, register(b, r, now, offers...)...)
	for b.Loop() {
		now = now.Add(7 * time.Hour)
		due := r.Due(now, 100)
		require.Len(b, due, 100)
		done(r, now, due...)
	}
}

func BenchmarkGet(b *testing.B) {
	r, now := disk(b, 1), epoch()
	register(b, r, now, offer("a"))
	b.ReportAllocs()
	for b.Loop() {
		r.Get("a")
	}
}

// BenchmarkOpen measures the start with 100 services: all signatures are verified.
func BenchmarkOpen(b *testing.B) {
	c := config(b, nil)
	c.Dir = b.TempDir()
	r, err := Open(c, epoch())
	require.NoError(b, err)
	var offers []records.Offer
	for i := range 100 {
		offers = append(offers, offer(strconv.Itoa(i)))
	}
	register(b, r, epoch(), offers...)
	for b.Loop() {
		require.NoError(b, r.Close())
		r, err = Open(c, epoch())
		require.NoError(b, err)
	}
	require.NoError(b, r.Close())
}
