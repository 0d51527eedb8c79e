package netns

import (
	"bytes"
	"container/heap"
	"io"
	"sync"
	"time"
)

// maxUnderWay bounds the delayed packets of a network, about 100 MB.
const maxUnderWay = 1 << 16

// queue writes packets at their times. One goroutine writes, so packets of equal delay keep their
// order.
type queue struct {
	mu      sync.Mutex // guards packets and order
	packets underWay
	order   uint64

	news    chan struct{}
	closing chan struct{}
	work    sync.WaitGroup
}

func newQueue() *queue {
	q := &queue{news: make(chan struct{}, 1), closing: make(chan struct{})}
	q.work.Go(q.run) // until close
	return q
}

// delivery is a packet under way.
type delivery struct {
	to     io.Writer
	packet []byte
	at     time.Time
	order  uint64
}

// add schedules a copy of a packet. It reports false for a full queue.
func (q *queue) add(to io.Writer, packet []byte, at time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.packets) >= maxUnderWay {
		return false
	}
	q.order++
	heap.Push(&q.packets, delivery{to, bytes.Clone(packet), at, q.order})
	if q.packets[0].order == q.order { // the first to deliver is new
		select {
		case q.news <- struct{}{}:
		default:
		}
	}
	return true
}

func (q *queue) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(q.deliver(time.Now()))
		select {
		case <-timer.C:
		case <-q.news:
		case <-q.closing:
			return
		}
	}
}

// deliver writes the packets that are due and returns the time until the next one.
func (q *queue) deliver(now time.Time) time.Duration {
	for {
		q.mu.Lock()
		if len(q.packets) == 0 || q.packets[0].at.After(now) {
			wait := time.Hour
			if len(q.packets) > 0 {
				wait = q.packets[0].at.Sub(now)
			}
			q.mu.Unlock()
			return wait
		}
		next := heap.Pop(&q.packets).(delivery)
		q.mu.Unlock()
		_, _ = next.to.Write(next.packet) // refused packets are lost
	}
}

// close drops the packets under way and waits for the goroutine.
func (q *queue) close() {
	close(q.closing)
	q.work.Wait()
}

// underWay is a heap of packets, the first to deliver on top.
type underWay []delivery

func (u underWay) Len() int { return len(u) }
func (u underWay) Less(i, j int) bool {
	if !u[i].at.Equal(u[j].at) {
		return u[i].at.Before(u[j].at)
	}
	return u[i].order < u[j].order
}
func (u underWay) Swap(i, j int) { u[i], u[j] = u[j], u[i] }

// Push implements heap.Interface.
func (u *underWay) Push(x any) { *u = append(*u, x.(delivery)) }

// Pop implements heap.Interface.
func (u *underWay) Pop() any {
	all := *u
	last := all[len(all)-1]
	*u = all[:len(all)-1]
	return last
}
