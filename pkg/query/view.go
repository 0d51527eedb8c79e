package query

import (
	"time"

	"github.com/blackhole/blackhole/pkg/records"
)

// ResultView is a result as people and their programs see it.
type ResultView struct {
	Record     records.View      `json:"record"`
	DistanceKM *float64          `json:"distance_km,omitempty"`
	Score      float64           `json:"score"`
	Measured   *records.Measured `json:"measured,omitempty"`
	Explain    []string          `json:"explain,omitempty"`
}

// AnswerView is an answer as people and their programs see it: the API's JSON.
type AnswerView struct {
	Results  []ResultView `json:"results"`
	Total    int          `json:"total"`
	Source   Source       `json:"source"`
	Complete bool         `json:"complete"`
	Reason   string       `json:"incomplete_reason,omitempty"`
	AgeMs    float64      `json:"age_ms"`
	TookMs   float64      `json:"took_ms"`
	Notes    []string     `json:"notes,omitempty"`
}

// View gives the answer's view.
func (a *Answer) View() AnswerView {
	v := AnswerView{
		Results: make([]ResultView, len(a.Results)), Total: a.Total, Source: a.Source,
		Complete: a.Complete, Reason: a.Reason, AgeMs: Millis(a.Age), TookMs: Millis(a.Took), Notes: a.Notes,
	}
	for i, r := range a.Results {
		v.Results[i] = ResultView{
			Record: records.ViewOf(r.Record), DistanceKM: r.DistanceKM, Score: r.Score,
			Measured: r.Measured, Explain: r.Explain,
		}
	}
	return v
}

// Millis gives a duration in milliseconds, the unit of the API.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
