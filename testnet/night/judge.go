package night

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/testnet/nemesis"
	"github.com/blackhole/blackhole/testnet/sample"
)

// Bars of the judge.
const (
	mostMemory = 256 << 20        // that a peer may have above what it had at the start
	mostHidden = 60 * time.Second // of one honest offer without trouble of its provider
	partHidden = 0.005            // of all looks
	eachMinute = 2                // checks of one offer by all, besides one by each peer (C29)
)

// Line is one promise to the honest.
type Line struct {
	Promise string `json:"promise"` // of RELIABILITY.md
	What    string `json:"what"`
	Checked int    `json:"checked"`
	Broken  int    `json:"broken"`
	Detail  string `json:"detail,omitempty"` // of the first
}

// rules are the checks of the nemesis, each with what breaks if it does.
func rules() []Line {
	return []Line{
		{Promise: "C5", What: "wrong complete answers"},
		{Promise: "T1", What: "units sold twice, or one request granted twice"},
		{Promise: "T3", What: "units that did not become free"},
		{Promise: "L3", What: "locks with two holders"},
		{Promise: "L1", What: "tokens that did not rise"},
		{Promise: "L2", What: "writes with an old token"},
		{Promise: "D1", What: "lost acknowledged writes"},
		{Promise: "V1", What: "peers that did not serve after a fault"},
		{Promise: "X1", What: "peers that ended by themselves, unexpected errors"},
	}
}

// judge has one line for each promise.
func (n *night) judge(r *nemesis.Report) (lines []Line) {
	rest := Line{Promise: "others", What: "other promises of the group (reads, queues, leases, watches)"}
	of := map[string]*Line{}
	lines = rules()
	for i := range lines {
		of[lines[i].Promise] = &lines[i]
	}
	of["P"] = of["C5"]
	line := func(rule string) *Line {
		if l := of[rule]; l != nil {
			return l
		}
		return &rest
	}
	for _, c := range r.Checks {
		line(c.Rule).Checked += c.Checked
	}
	for _, v := range r.Violations {
		l := line(v.Rule)
		if l.Broken++; l.Broken == 1 {
			l.Detail = v.Detail
		}
	}
	of["V1"].Checked, of["T3"].Checked = len(r.Recoveries), of["T1"].Checked
	of["X1"].Checked = len(n.peers)
	own := []Line{rest, n.goodsLine(), n.stolenLine(), n.trustLine(), n.hiddenLine(), n.askedLine(), n.memoryLine()}
	return append(lines, own...)
}

func (l Line) breaks(all []string) Line {
	if l.Broken = len(all); l.Broken > 0 {
		l.Detail = all[0]
	}
	return l
}

func (n *night) goodsLine() Line {
	l := Line{Promise: "T2", What: "purchases with wrong bytes", Checked: len(n.books.bought)}
	return l.breaks(n.books.wrong)
}

func (n *night) stolenLine() Line {
	l := Line{Promise: "T2", What: "bytes without a grant"}
	for name, a := range n.attacks {
		if name == "thieves" {
			l.Checked += int(a.Sent)
		}
		if l.Broken += int(a.Stolen); a.Stolen > 0 {
			l.Detail = fmt.Sprintf("%d bytes by %s", a.Stolen, name)
		}
	}
	return l
}

func (n *night) trustLine() Line {
	return Line{Promise: "C15", What: "honest peers taken for liars", Checked: len(n.peers)}.breaks(n.distrusted)
}

func (n *night) hiddenLine() Line {
	l := Line{Promise: "C27", What: "honest offers hidden for more than 60 s, or in more than 0.5 % of looks", Checked: n.books.looks}
	b := n.books
	if b.longest > mostHidden || float64(b.unseen) > partHidden*float64(b.looks) {
		l.Broken = b.unseen
		l.Detail = fmt.Sprintf("%d looks in vain, the longest row of them %.0f s: %s",
			b.unseen, b.longest.Seconds(), strings.Join(b.lines, "; "))
	}
	return l
}

func (n *night) askedLine() Line {
	l := Line{Promise: "C29", What: "minutes in which an honest shop was checked too often"}
	most := eachMinute + len(n.peers) + len(n.hostile)*outsides
	for seller, of := range n.books.asked {
		for minute, times := range of {
			if l.Checked++; times > most {
				l.Broken++
				l.Detail = fmt.Sprintf("the shop of %s was asked %d times in minute %d, more than %d",
					n.peers[seller].name, times, minute, most)
			}
		}
	}
	return l
}

func (n *night) memoryLine() Line {
	what := fmt.Sprintf("peers with more than %d MiB above their start", mostMemory>>20)
	l := Line{Promise: "memory", What: what, Checked: len(n.samples)}
	for name, all := range n.samples {
		most := slices.MaxFunc(all, func(a, b Sample) int { return int(a.Memory>>10) - int(b.Memory>>10) })
		if most.Memory > all[0].Memory+mostMemory {
			l.Broken++
			l.Detail = fmt.Sprintf("%s had %d MiB after %.0f s, and %d at the start",
				name, most.Memory>>20, most.At, all[0].Memory>>20)
		}
	}
	return l
}

// figures are the availability and what peers took.
func (n *night) figures(r *nemesis.Report) (all []Figure) {
	add := func(what, format string, args ...any) { all = append(all, Figure{what, fmt.Sprintf(format, args...)}) }
	q := r.Questions
	add("questions at peers without a fault",
		"%d: %.2f %% answered within 1 s, %.2f %% within 5 s, %d failed, slowest %.1f s; %d more at peers under a fault",
		q.Asked, percent(q.Second, q.Asked), percent(q.Five, q.Asked), q.Failed, q.Slowest, q.Troubled)
	var later []string
	for _, p := range n.peers {
		if times := q.Later[p.name]; times > 0 {
			later = append(later, fmt.Sprintf("%s (%s) %d", p.name, p.kind, times))
		}
	}
	add("answers after more than 1 s, by peer", "%s", strings.Join(later, ", "))
	add("lateness of this program", "%.2f s at most: what it asked then waited for the machine", n.late.Seconds())
	add("complete answers", "%d of %d; %d lacked a change that not all keepers had",
		r.Answers.Complete, r.Answers.Complete+r.Answers.Incomplete, r.Answers.Late)
	if lacking := r.Unsettled; len(lacking) > 0 {
		add("peers without a complete answer 2 min after all attacks", "%d of %d: %s", len(lacking), len(n.peers), lacking[0])
	}
	b := n.books
	failed := 0
	for _, times := range b.failed {
		failed += times
	}
	after := func(q float64) float64 { return sample.Quantile(b.bought, q).Seconds() }
	add("purchases",
		"%d, %d in vain beside no fault of buyer or seller; the first byte after %.2f s (median), %.2f s (95 %%), %.2f s at most",
		len(b.bought), failed, after(0.5), after(0.95), after(1))
	add("honest shops", "%d of %d looks in vain, the longest row %.0f s", b.unseen, b.looks, b.longest.Seconds())
	busiest := 0
	for _, of := range b.asked {
		for _, times := range of {
			busiest = max(busiest, times)
		}
	}
	add("checks of a shop", "at most %d in a minute, by %d honest peers", busiest, len(n.peers))
	var memory uint64
	files := 0
	for _, of := range n.samples {
		for _, s := range of {
			memory, files = max(memory, s.Memory), max(files, s.Files)
		}
	}
	add("memory of an honest peer", "%d MiB at most", memory>>20)
	add("descriptors of an honest peer", "%d at most", files)
	if of := n.samples[n.peers[len(n.peers)-1].name]; len(of) > 1 {
		received, sent, seconds := 0.0, 0.0, 0.0
		for i, s := range of[1:] {
			before := of[i]
			if s.Received < before.Received || before.Received == 0 || s.Received == 0 {
				continue // it was restarted, or did not answer
			}
			received, sent = received+s.Received-before.Received, sent+s.Sent-before.Sent
			seconds += s.At - before.At
		}
		seconds = max(seconds, 1)
		add("traffic of an idle honest peer", "%.1f KB/s received, %.1f KB/s sent", received/1000/seconds, sent/1000/seconds)
	}
	return all
}

func percent(of, all int) float64 { return 100 * float64(of) / float64(max(all, 1)) }
