package query

import (
	"strconv"
	"time"

	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/pkg/records/jsonform"
)

// ResultView is the JSON form of a Result.
type ResultView struct {
	Record     records.View      `json:"record"`
	DistanceKM *float64          `json:"distance_km,omitempty"`
	Score      float64           `json:"score"`
	Measured   *records.Measured `json:"measured,omitempty"`
	Explain    []string          `json:"explain,omitempty"`
}

// AnswerView is the JSON form of an Answer, as in the API.
type AnswerView struct {
	Results  []ResultView `json:"results"`
	Total    int          `json:"total"`
	AtLeast  bool         `json:"total_at_least,omitempty"` // Total is a lower bound
	Next     string       `json:"next,omitempty"`           // for Query.After
	Source   Source       `json:"source"`
	Complete bool         `json:"complete"`
	Reason   string       `json:"incomplete_reason,omitempty"`
	AgeMs    float64      `json:"age_ms"`
	TookMs   float64      `json:"took_ms"`
	Notes    []string     `json:"notes,omitempty"`

	Excluded      []Excluded `json:"excluded,omitempty"`
	ExcludedTotal int        `json:"excluded_total,omitempty"`

	Groups []PriceGroup `json:"price_groups,omitempty"`
	Cells  *Cells       `json:"cells,omitempty"`
}

// View returns the answer's view.
func (a *Answer) View() AnswerView {
	v := AnswerView{
		Results: make([]ResultView, len(a.Results)), Total: a.Total, AtLeast: a.AtLeast, Next: a.Next, Source: a.Source,
		Complete: a.Complete, Reason: a.Reason, AgeMs: Millis(a.Age), TookMs: Millis(a.Took), Notes: a.Notes,
		Excluded: a.Excluded, ExcludedTotal: a.ExcludedTotal, Groups: a.Groups, Cells: a.Cells,
	}
	for i, r := range a.Results {
		v.Results[i] = ResultView{
			Record: r.Record.View(), DistanceKM: r.DistanceKM, Score: r.Score,
			Measured: r.Measured, Explain: r.Explain,
		}
	}
	return v
}

// AppendJSON appends the JSON of the answer's view, byte for byte equal to
// json.Marshal(a.View()), except for null in place of NaN and infinities. It does not allocate
// if dst has room; see records.Record.AppendJSON.
func (a *Answer) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"results":[`...)
	for i := range a.Results {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = a.Results[i].appendJSON(dst)
	}
	dst = append(dst, `],"total":`...)
	dst = strconv.AppendInt(dst, int64(a.Total), 10)
	if a.AtLeast {
		dst = append(dst, `,"total_at_least":true`...)
	}
	if a.Next != "" {
		dst = append(dst, `,"next":`...)
		dst = jsonform.AppendString(dst, a.Next)
	}
	dst = append(dst, `,"source":`...)
	dst = jsonform.AppendString(dst, string(a.Source))
	dst = append(dst, `,"complete":`...)
	dst = strconv.AppendBool(dst, a.Complete)
	if a.Reason != "" {
		dst = append(dst, `,"incomplete_reason":`...)
		dst = jsonform.AppendString(dst, a.Reason)
	}
	dst = append(dst, `,"age_ms":`...)
	dst = jsonform.AppendNumber(dst, Millis(a.Age))
	dst = append(dst, `,"took_ms":`...)
	dst = jsonform.AppendNumber(dst, Millis(a.Took))
	dst = appendLines(dst, `,"notes":`, a.Notes)
	if len(a.Excluded) > 0 {
		dst = appendExcluded(dst, a.Excluded)
	}
	if a.ExcludedTotal != 0 {
		dst = append(dst, `,"excluded_total":`...)
		dst = strconv.AppendInt(dst, int64(a.ExcludedTotal), 10)
	}
	if len(a.Groups) > 0 {
		dst = appendGroups(dst, a.Groups)
	}
	if a.Cells != nil {
		dst = appendCells(dst, a.Cells)
	}
	return append(dst, '}')
}

// appendGroups appends the member "price_groups".
func appendGroups(dst []byte, list []PriceGroup) []byte {
	dst = append(dst, `,"price_groups":`...)
	sep := byte('[')
	for _, g := range list {
		dst = append(append(dst, sep), `{"currency":`...)
		dst = jsonform.AppendString(dst, g.Currency)
		dst = append(dst, `,"price_unit":`...)
		dst = jsonform.AppendString(dst, g.PriceUnit)
		dst = append(dst, `,"first":`...)
		dst = strconv.AppendInt(dst, int64(g.First), 10)
		dst = append(dst, `,"results":`...)
		dst = strconv.AppendInt(dst, int64(g.Results), 10)
		dst = append(dst, `,"total":`...)
		dst = strconv.AppendInt(dst, int64(g.Total), 10)
		if g.AtLeast {
			dst = append(dst, `,"total_at_least":true`...)
		}
		dst = append(dst, '}')
		sep = ','
	}
	return append(dst, ']')
}

// appendCells appends the member "cells".
func appendCells(dst []byte, c *Cells) []byte {
	dst = append(dst, `,"cells":{"length":`...)
	dst = strconv.AppendInt(dst, int64(c.Length), 10)
	dst = append(dst, `,"counts":[`...)
	for i, n := range c.Counts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"cell":`...)
		dst = jsonform.AppendString(dst, string(n.Cell))
		dst = append(dst, `,"count":`...)
		dst = strconv.AppendInt(dst, int64(n.Count), 10)
		dst = append(dst, '}')
	}
	dst = append(dst, `],"unplaced":`...)
	dst = strconv.AppendInt(dst, int64(c.Unplaced), 10)
	return append(dst, '}')
}

// appendExcluded appends the member "excluded".
func appendExcluded(dst []byte, list []Excluded) []byte {
	dst = append(dst, `,"excluded":`...)
	sep := byte('[')
	for _, e := range list {
		dst = append(append(dst, sep), `{"provider":`...)
		dst = jsonform.AppendString(dst, e.Provider)
		dst = append(dst, `,"reason":`...)
		dst = jsonform.AppendString(dst, e.Reason)
		if !e.Since.IsZero() {
			dst = append(dst, `,"since":`...)
			dst = jsonform.AppendTime(dst, e.Since)
		}
		dst = append(dst, '}')
		sep = ','
	}
	return append(dst, ']')
}

// appendJSON appends a ResultView.
func (r *Result) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"record":`...)
	dst = r.Record.AppendJSON(dst)
	if r.DistanceKM != nil {
		dst = append(dst, `,"distance_km":`...)
		dst = jsonform.AppendNumber(dst, *r.DistanceKM)
	}
	dst = append(dst, `,"score":`...)
	dst = jsonform.AppendNumber(dst, r.Score)
	if r.Measured != nil {
		dst = append(dst, `,"measured":`...)
		dst = r.Measured.AppendJSON(dst)
	}
	dst = appendLines(dst, `,"explain":`, r.Explain)
	return append(dst, '}')
}

// appendLines appends a member with a list of strings, unless the list is empty.
func appendLines(dst []byte, name string, lines []string) []byte {
	if len(lines) == 0 {
		return dst
	}
	dst = append(dst, name...)
	sep := byte('[')
	for _, line := range lines {
		dst = jsonform.AppendString(append(dst, sep), line)
		sep = ','
	}
	return append(dst, ']')
}

// Millis converts a duration to milliseconds, the unit of the API.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
