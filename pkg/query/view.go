package query

import (
	"encoding/json"
	"time"

	"github.com/blackhole/blackhole/internal/platform/jsonform"
	"github.com/blackhole/blackhole/pkg/records"
)

// ResultView is the JSON form of a Result.
type ResultView struct {
	Record     records.View      `json:"record"`
	DistanceKM *float64          `json:"distance_km,omitempty"`
	Score      float64           `json:"score"`
	Measured   *records.Measured `json:"peer,omitempty"`
	Endpoint   *records.Measured `json:"endpoint,omitempty"`
	Domain     *records.Measured `json:"domain,omitempty"`
	Doubts     []string          `json:"doubts,omitempty"`
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

	Beyond        *LeftOut   `json:"beyond,omitempty"`
	Excluded      []Excluded `json:"excluded,omitempty"`
	ExcludedTotal int        `json:"excluded_total,omitempty"`

	Groups []PriceGroup `json:"price_groups,omitempty"`
	Cells  *Cells       `json:"cells,omitempty"`
}

// View returns the answer's view.
func (a *Answer) View() AnswerView {
	v := AnswerView{
		Results: make([]ResultView, len(a.Results)), Total: a.Total, AtLeast: a.AtLeast, Next: a.Next, Source: a.Source,
		Complete: a.Complete, Reason: a.Reason, AgeMs: millis(a.Age), TookMs: millis(a.Took), Notes: a.Notes,
		Beyond: a.Beyond, Excluded: a.Excluded, ExcludedTotal: a.ExcludedTotal, Groups: a.Groups, Cells: a.Cells,
	}
	for i, r := range a.Results {
		v.Results[i] = ResultView{
			Record: r.Record.View(), DistanceKM: r.DistanceKM, Score: r.Score,
			Measured: r.Measured, Endpoint: r.Endpoint, Domain: r.Domain, Doubts: r.Doubts, Explain: r.Explain,
		}
	}
	return v
}

// AppendJSON appends the JSON of the answer's view, byte for byte equal to
// json.Marshal(a.View()), except for null in place of NaN and infinities. Results go around
// package encoding/json, which takes seven times as long for a record; see
// records.Record.AppendJSON.
func (a *Answer) AppendJSON(dst []byte) []byte {
	const results = `{"results":[`
	rest := *a
	rest.Results = nil
	text, err := json.Marshal(rest.View())
	if err != nil {
		panic("query: an answer has no JSON form: " + err.Error()) // impossible: texts, finite numbers and times
	}
	dst = append(dst, results...)
	for i := range a.Results {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = a.Results[i].appendJSON(dst)
	}
	return append(dst, text[len(results):]...)
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
		dst = append(dst, `,"peer":`...)
		dst = r.Measured.AppendJSON(dst)
	}
	if r.Endpoint != nil {
		dst = append(dst, `,"endpoint":`...)
		dst = r.Endpoint.AppendJSON(dst)
	}
	if r.Domain != nil {
		dst = append(dst, `,"domain":`...)
		dst = r.Domain.AppendJSON(dst)
	}
	dst = appendLines(dst, `,"doubts":`, r.Doubts)
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

// millis converts a duration to milliseconds, the unit of the API.
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
