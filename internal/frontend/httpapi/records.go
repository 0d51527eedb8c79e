package httpapi

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

func (d *discoveryAPI) register(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	offer, err := records.ParseOffer(body)
	if err != nil {
		return within("body", err)
	}
	receipt, err := d.registrar.Register(r.Context(), offer)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/discovery/records/"+url.PathEscape(receipt.ID))
	return writeJSON(w, http.StatusCreated, receipt)
}

// batchResult is one entry of the answer to a batch: the fields of a receipt, or an error.
type batchResult struct {
	*records.Receipt
	Error *errorBody `json:"error,omitempty"`
}

func (d *discoveryAPI) registerBatch(w http.ResponseWriter, r *http.Request) error {
	if err := hold(w, r, maxBatch); err != nil {
		return err
	}
	entries, err := readBatch(http.MaxBytesReader(w, r.Body, maxBatch))
	if err != nil {
		return within("body", err)
	}
	offers, errs := make([]records.Offer, len(entries)), make([]error, len(entries))
	for i, e := range entries {
		offers[i], errs[i] = e.offer, within("body", e.err)
	}
	outcomes, err := discovery.RegisterAccepted(r.Context(), d.registrar, offers, errs)
	if err != nil {
		return err
	}
	results := make([]batchResult, len(outcomes))
	for i, o := range outcomes {
		if o.Err != nil {
			results[i] = failed(o.Err)
		} else {
			results[i] = batchResult{Receipt: &o.Receipt}
		}
	}
	return writeJSON(w, http.StatusOK, map[string]any{"results": results})
}

func failed(err error) batchResult {
	_, body := bodyOf(err)
	return batchResult{Error: &body}
}

func (d *discoveryAPI) list(w http.ResponseWriter, _ *http.Request) error {
	render := func(r *records.Record) []byte { return r.AppendJSON(nil) }
	return writeList(w, `{"records":[`, d.registrar.OwnAll(), ofRecord, render, "]}")
}

func (d *discoveryAPI) get(w http.ResponseWriter, r *http.Request) error {
	rec, err := d.registrar.Own(r.PathValue("id"))
	if err != nil {
		return err
	}
	return d.buffers.write(w, ofRecord(rec), rec.AppendJSON)
}

// update takes the id from the path. The body may repeat the id.
func (d *discoveryAPI) update(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	offer, err := records.ParseOffer(withID(body, id))
	if err != nil {
		return within("body", err)
	}
	if offer.ID != id {
		return fault.Invalidf("id", offer.ID, "differs from the id in the path, %q: use one id, or omit it in the body", id)
	}
	receipt, err := d.registrar.Update(r.Context(), offer)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, receipt)
}

// withID puts an id into the text of an object without id. The parser refuses all other text.
func withID(body []byte, id string) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil || fields == nil || fields["id"] != nil {
		return body
	}
	quoted, err := json.Marshal(id)
	if err != nil {
		return body // unreachable: every string has a JSON form
	}
	_, rest, _ := bytes.Cut(body, []byte("{"))
	if len(fields) > 0 {
		quoted = append(quoted, ',')
	}
	return slices.Concat([]byte(`{"id":`), quoted, rest)
}

func (d *discoveryAPI) withdraw(w http.ResponseWriter, r *http.Request) error {
	receipt, err := d.registrar.Withdraw(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, receipt)
}

// pause takes an optional body with the length of the pause.
func (d *discoveryAPI) pause(w http.ResponseWriter, r *http.Request) error {
	body, err := readUpTo(w, r, maxBody)
	if err != nil {
		return err
	}
	var asked struct {
		Seconds float64 `json:"for_seconds"`
	}
	if len(body) > 0 {
		if err := strictjson.Decode(body, maxBody, &asked); err != nil {
			return within("body", err)
		}
	}
	if !(asked.Seconds >= 0 && asked.Seconds < math.MaxInt64/1e9) {
		return within("body", fault.Invalidf("for_seconds", asked.Seconds, "must not be negative"))
	}
	receipt, err := d.registrar.Pause(r.Context(), r.PathValue("id"), time.Duration(asked.Seconds*float64(time.Second)))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, receipt)
}

func (d *discoveryAPI) resume(w http.ResponseWriter, r *http.Request) error {
	receipt, err := d.registrar.Resume(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, receipt)
}
