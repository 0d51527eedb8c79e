package offer

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/cli/term"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// answerTable shows results in rank order, each followed by its explanation.
func answerTable(a query.AnswerView, now time.Time) term.Grid {
	if a.Cells != nil {
		return cellTable(a)
	}
	rows := make([][]string, len(a.Results))
	for i, r := range a.Results {
		v := &r.Record
		rows[i] = []string{
			v.ID, term.OrDash(v.Metadata.Name), kindOf(v), capacityOf(v), placeOf(v), distanceOf(r.DistanceKM), priceOf(v),
			strings.Join([]string{healthOf(v), endpointState(r.Endpoint, now), measuredOf(r.Measured, now)}, " / "), term.ShortPeer(v.ProviderID), endpointOf(v),
		}
	}
	g := term.Table([]string{"ID", "NAME", "TYPE", "CAPACITY", "PLACE", "DISTANCE", "PRICE", "CLAIMED / ENDPOINT / PEER", "PROVIDER", "ENDPOINT"}, rows)
	g = g.Without("CLAIMED / ENDPOINT / PEER", "NAME", "ENDPOINT", "PROVIDER")
	if !slices.ContainsFunc(a.Results, func(r query.ResultView) bool { return r.DistanceKM != nil }) {
		g.Spare = append([]string{"DISTANCE"}, g.Spare...) // who asks for a place wants to know it
	}
	if !slices.ContainsFunc(a.Results, func(r query.ResultView) bool { return r.Record.Metadata.Type != a.Results[0].Record.Metadata.Type }) {
		g.Spare = append([]string{"TYPE"}, g.Spare...)
	}
	g.Above, g.Below = map[int][]string{}, map[int][]string{}
	for _, p := range a.Groups {
		g.Above[p.First] = append(g.Above[p.First], "# prices in "+p.Currency+" "+p.PriceUnit+": "+strconv.Itoa(p.Results)+" of "+strconv.Itoa(p.Total))
	}
	for i, r := range a.Results {
		g.Below[i] = r.Explain
		if r.Domain != nil {
			g.Below[i] = append(g.Below[i], "domain: "+r.Record.Metadata.Domain+" ("+domainState(r.Domain)+")")
		}
		for _, doubt := range r.Doubts {
			g.Below[i] = append(g.Below[i], "doubtful: "+doubt)
		}
	}
	for _, note := range a.Notes {
		g.Notes = append(g.Notes, "# "+note)
	}
	return g
}

// cellTable shows how many offers are in each cell.
func cellTable(a query.AnswerView) term.Grid {
	rows := make([][]string, len(a.Cells.Counts))
	for i, n := range a.Cells.Counts {
		price := "-"
		if n.Least != nil {
			price = strconv.FormatFloat(*n.Least, 'f', -1, 64)
		}
		rows[i] = []string{string(n.Cell), fmt.Sprintf("%.2f,%.2f", n.Cell.Center().Lat, n.Cell.Center().Lon), strconv.Itoa(n.Count), price}
	}
	g := term.Table([]string{"CELL", "CENTRE", "OFFERS", "LEAST PRICE"}, rows)
	if a.Cells.Unplaced > 0 {
		g.Notes = append(g.Notes, "# without a place: "+fault.Counted(a.Cells.Unplaced, "offer"))
	}
	g.Notes = append(g.Notes, menuNotes(a.Cells.Menu)...)
	return g
}

// shownCountries bounds the countries of a note.
const shownCountries = 20

func menuNotes(m query.Menu) (notes []string) {
	for _, list := range []struct {
		what   string
		counts map[string]int
	}{{"types", m.Types}, {"countries", m.Countries}} {
		names := slices.SortedFunc(maps.Keys(list.counts), func(a, b string) int {
			return cmp.Or(cmp.Compare(list.counts[b], list.counts[a]), cmp.Compare(a, b))
		})
		more := len(names) - shownCountries
		names = names[:min(len(names), shownCountries)]
		for i, name := range names {
			names[i] = fmt.Sprintf("%s %d", name, list.counts[name])
		}
		if more > 0 {
			names = append(names, fmt.Sprintf("%d more", more))
		}
		if len(names) > 0 {
			notes = append(notes, "# "+list.what+": "+strings.Join(names, ", "))
		}
	}
	x := m.Most
	var most []string
	for _, c := range []struct {
		stated bool
		text   string
	}{
		{x.CPUCores > 0, fmt.Sprintf("%d-core CPU", x.CPUCores)}, {x.GPUs > 0, fault.Counted(int(x.GPUs), "GPU")}, {x.MemoryMB > 0, memory(x.MemoryMB)},
		{x.StorageBytes > 0, decimal(float64(x.StorageBytes), "B") + " free"}, {x.BandwidthMbps > 0, decimal(float64(x.BandwidthMbps)*1e6, "bit/s")},
	} {
		if c.stated {
			most = append(most, c.text)
		}
	}
	if len(most) > 0 {
		notes = append(notes, "# greatest of each capacity: "+strings.Join(most, ", "))
	}
	return notes
}

// recordList shows records without distances and measurements.
func recordList(list []records.View) term.Document {
	header := []string{"ID", "TYPE", "PLACE", "PRICE", "UPTIME", "CLAIMED", "SEQUENCE", "EXPIRES", "PROVIDER"}
	d := term.List("records", list, header, func(v *records.View) []string {
		return []string{
			v.ID, kindOf(v), placeOf(v), priceOf(v), uptimeOf(v), healthOf(v),
			strconv.FormatUint(v.Sequence, 10), term.At(v.ExpiresAt), term.ShortPeer(v.ProviderID),
		}
	})
	d.Table = d.Table.(term.Grid).Without("SEQUENCE", "PROVIDER", "UPTIME", "EXPIRES", "CLAIMED")
	return d
}

// eventLine shows one event of a watch. Columns have a fixed width, because later rows are
// still unknown.
func eventLine(kind string, v *records.View, reason string) string {
	line := fmt.Sprintf("%-9s  %-16s  %-14s  %-20s  %-24s  %-7s  %-9s  %s",
		kind, v.ID, kindOf(v), placeOf(v), priceOf(v), uptimeOf(v), healthOf(v), term.ShortPeer(v.ProviderID))
	if reason != "" {
		line += "  (" + reason + ")"
	}
	return term.Clean(line) + "\n"
}

// excludedLine names the providers that an answer leaves out, the first three of them with their reasons.
func excludedLine(a query.AnswerView) string {
	const shown = 3
	var parts []string
	for _, e := range a.Excluded[:min(len(a.Excluded), shown)] {
		who := term.ShortPeer(e.Provider)
		if e.ID != "" {
			who = e.ID + " of " + who
		}
		why := e.Reason
		if !e.Since.IsZero() {
			why += ", since " + term.At(e.Since)
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", who, why))
	}
	if more := a.ExcludedTotal - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return term.Clean("left out: " + strings.Join(parts, ", "))
}

func kindOf(v *records.View) string {
	if v.Metadata.Subtype == "" {
		return v.Metadata.Type
	}
	return v.Metadata.Type + "/" + v.Metadata.Subtype
}

// placeOf is "city, country". The region stands in for a missing city.
func placeOf(v *records.View) string {
	l := v.Location
	if l == nil {
		return "-"
	}
	near := l.City
	near = cmp.Or(near, l.Region)
	switch {
	case near != "" && l.Country != "":
		return near + ", " + l.Country
	case near != "" || l.Country != "":
		return near + l.Country
	case l.Latitude != nil && l.Longitude != nil:
		return fmt.Sprintf("%.2f,%.2f", *l.Latitude, *l.Longitude)
	default:
		return "-"
	}
}

func distanceOf(km *float64) string {
	switch {
	case km == nil:
		return "-"
	case *km < 1:
		return fmt.Sprintf("%.0f m", *km*1000)
	case *km < 100:
		return fmt.Sprintf("%.1f km", *km)
	default:
		return fmt.Sprintf("%.0f km", *km)
	}
}

func priceOf(v *records.View) string {
	p := v.Pricing
	if p == nil || p.BasePrice == nil {
		return "-"
	}
	return strings.Join(strings.Fields(term.Number(*p.BasePrice)+" "+p.Currency+" "+p.PriceUnit), " ")
}

func uptimeOf(v *records.View) string {
	if v.Health == nil || v.Health.UptimePercent == nil {
		return "-"
	}
	return term.Number(math.Round(*v.Health.UptimePercent*100)/100) + "%"
}

func healthOf(v *records.View) string {
	switch p := v.Paused; {
	case p != nil && p.Stopped:
		return "stopped"
	case p != nil:
		return "paused"
	}
	if v.Health == nil || v.Health.Status == "" || v.Health.Status == "UNKNOWN" {
		return "-"
	}
	return strings.ToLower(v.Health.Status)
}

// endpointState says who found what of an endpoint, and when.
func endpointState(m *records.Measured, now time.Time) string {
	switch {
	case m == nil:
		return "-"
	case m.CheckedAt.IsZero():
		return string(m.State)
	}
	who := "this peer"
	if m.Peers > 0 {
		who = fault.Counted(m.Peers, "measurer")
	}
	return fmt.Sprintf("%s (%s, %s ago)", m.State, who, ageOf(m, now))
}

// domainState says whether a domain names the provider, and why not.
func domainState(m *records.Measured) string {
	if m.State == records.Claimed && m.Detail != "" {
		return "claimed; " + m.Detail
	}
	return string(m.State)
}

// measuredOf shows the measurement of the provider's peer by the answering peer, or by others.
func measuredOf(m *records.Measured, now time.Time) string {
	if m == nil {
		return "-"
	}
	text := term.OrDash(string(m.State))
	if m.State == records.Reachable && m.RoundTrip != 0 {
		text += " " + term.Millis(queries.Millis(m.RoundTrip))
	}
	if m.Peers > 0 {
		text += " by " + fault.Counted(m.Peers, "peer")
	}
	if !m.Since.IsZero() && m.State != records.Unreachable {
		return text + ", no answer since " + term.At(m.Since)
	}
	if !m.CheckedAt.IsZero() && ageOf(m, now) >= old {
		text += ", " + ageOf(m, now).String() + " ago"
	}
	return text
}

// old is the age from which the measurement of a peer tells its age.
const old = 30 * time.Second

// ageOf is the time since a measurement.
func ageOf(m *records.Measured, now time.Time) time.Duration {
	return max(now.Sub(m.CheckedAt), 0).Round(time.Second)
}

// capacityOf names what an offer sells, in decimal units as the offer has them. It leaves missing figures out.
func capacityOf(v *records.View) string {
	c := v.Capabilities
	if c == nil {
		return "-"
	}
	var parts []string
	if c.Compute != nil {
		parts = append(parts, processors(c.Compute)...)
	}
	if s := c.Storage; s != nil && s.AvailableSpace > 0 {
		parts = append(parts, decimal(float64(s.AvailableSpace), "B")+" free")
	}
	if b := c.Bandwidth; b != nil && b.UploadMbps+b.DownloadMbps > 0 {
		parts = append(parts, fmt.Sprintf("%d/%d Mbit/s down/up", b.DownloadMbps, b.UploadMbps))
	}
	if d := c.CDN; d != nil && d.BandwidthMbps > 0 {
		parts = append(parts, decimal(float64(d.BandwidthMbps)*1e6, "bit/s"))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// processors lists the GPUs, which buyers ask for first, cores and memory of a compute offer.
func processors(c *records.Compute) (parts []string) {
	var models []string
	count := map[string]int{}
	for _, g := range c.GPUs {
		name := strings.TrimSpace(g.Model + " " + memory(uint64(g.MemoryMB)))
		if count[name]++; count[name] == 1 {
			models = append(models, name)
		}
	}
	for _, name := range models {
		parts = append(parts, strings.TrimSpace(strconv.Itoa(count[name])+"x "+name))
	}
	if c.CPUCores > 0 {
		parts = append(parts, strconv.FormatUint(uint64(c.CPUCores), 10)+"-core CPU")
	}
	if c.MemoryMB > 0 {
		parts = append(parts, memory(c.MemoryMB))
	}
	return parts
}

func memory(mb uint64) string {
	if mb == 0 {
		return ""
	}
	return decimal(float64(mb)*1e6, "B")
}

// decimal shows an amount with three digits and a decimal prefix: 48 GB.
func decimal(n float64, unit string) string {
	prefixes := []string{"", "k", "M", "G", "T", "P", "E"}
	i := 0
	for n >= 999.5 && i < len(prefixes)-1 {
		n, i = n/1000, i+1
	}
	return strconv.FormatFloat(n, 'g', 3, 64) + " " + prefixes[i] + unit
}

// endpointOf is the first endpoint of an offer, and how many more it has.
func endpointOf(v *records.View) string {
	list := v.Metadata.Endpoints
	switch len(list) {
	case 0:
		if v.Metadata.Access == records.AccessPeer {
			return "through its peer"
		}
		return "-"
	case 1:
		return list[0]
	}
	return fmt.Sprintf("%s (+%d)", list[0], len(list)-1)
}
