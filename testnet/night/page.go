package night

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Size of a plot.
const width, height = 900, 220

// plot is one picture with a curve for each peer.
type plot struct {
	Name   string
	Most   string
	Last   string
	Curves []curve
}

type curve struct{ Peer, Colour, Points string }

// WritePage writes the report as one page, with curves.
func (r *Report) WritePage(w io.Writer) error {
	return page().Execute(w, struct {
		*Report
		Plots []plot
	}{r, []plot{
		r.plot("memory, MiB", func(s, _ Sample) float64 { return float64(s.Memory) / (1 << 20) }),
		r.plot("descriptors", func(s, _ Sample) float64 { return float64(s.Files) }),
		r.plot("traffic of the idle peer, KB/s received and sent", func(s, before Sample) float64 {
			return max(0, s.Received+s.Sent-before.Received-before.Sent) / 1000 / max(s.At-before.At, 1)
		}),
	}})
}

// plot draws a value of all samples. value gets the sample and the one before it.
func (r *Report) plot(name string, value func(s, before Sample) float64) plot {
	most, last := 1.0, 1.0
	for _, all := range r.Samples {
		for i, s := range all {
			most, last = max(most, value(s, all[max(i-1, 0)])), max(last, s.At)
		}
	}
	p := plot{Name: name, Most: fmt.Sprintf("%.0f", most), Last: fmt.Sprintf("%.0f s", last)}
	for i, peer := range slices.Sorted(maps.Keys(r.Samples)) {
		var points strings.Builder
		all := r.Samples[peer]
		for k, s := range all {
			fmt.Fprintf(&points, "%.1f,%.1f ", s.At/last*width, height-value(s, all[max(k-1, 0)])/most*height)
		}
		p.Curves = append(p.Curves, curve{peer, fmt.Sprintf("hsl(%d 70%% 40%%)", i*137%360), points.String()})
	}
	return p
}

func page() *template.Template {
	return template.Must(template.New("night").Parse(`<!doctype html>
<meta charset="utf-8"><title>Night {{.Seed}}</title>
<style>body{font:14px sans-serif;margin:2em;max-width:60em}td,th{text-align:left;padding:2px 12px 2px 0;vertical-align:top}
.broken{color:#b00020;font-weight:bold}svg{background:#f6f6f6;overflow:visible}</style>
<h1>Night with seed {{.Seed}}, {{.Seconds}} s</h1>
<p>Load of the machine at the end: {{.Load}}</p>
<h2>Promises</h2>
<table><tr><th>promise<th>broken<th>checked<th>what</tr>
{{range .Promises}}<tr{{if .Broken}} class="broken"{{end}}><td>{{.Promise}}<td>{{.Broken}}<td>{{.Checked}}<td>{{.What}}{{with .Detail}}<br>{{.}}{{end}}</tr>
{{end}}</table>
<h2>Figures</h2>
<table>{{range .Figures}}<tr><td>{{.What}}<td>{{.Text}}</tr>
{{end}}</table>
{{range .Plots}}<h2>{{.Name}}</h2>
<svg width="900" height="240" viewBox="0 0 900 240"><text x="2" y="12">{{.Most}}</text><text x="840" y="236">{{.Last}}</text>
{{range .Curves}}<polyline fill="none" stroke="{{.Colour}}" points="{{.Points}}"><title>{{.Peer}}</title></polyline>
{{end}}</svg>
{{end}}<h2>Attackers</h2>
<table><tr><th>role<th>shifts<th>identities<th>sent<th>accepted<th>what</tr>
{{range $name, $a := .Attacks}}<tr><td>{{$name}}<td>{{$a.Shifts}}<td>{{$a.Hosts}}<td>{{$a.Sent}}<td>{{$a.Accepted}}<td>{{$a.About}}</tr>
{{end}}</table>
<h2>Faults</h2>
<table>{{range $kind, $times := .Nemesis.Faults}}<tr><td>{{$kind}}<td>{{$times}}</tr>
{{end}}</table>
<h2>Places</h2>
<pre>{{range .World}}{{.}}
{{end}}</pre>
`))
}

// loadAverage is that of the machine; empty where it is not known.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}
