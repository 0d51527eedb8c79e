package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

func (s *Server) register(w http.ResponseWriter, r *http.Request) error {
	offer, err := readOffer(w, r)
	if err != nil {
		return err
	}
	receipt, err := s.Registrar.Register(r.Context(), offer)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/discovery/records/"+url.PathEscape(receipt.ID))
	writeJSON(w, http.StatusCreated, receipt)
	return nil
}

// batchResult is one entry of a batch's answer: a receipt's fields, or an error.
type batchResult struct {
	*discovery.Receipt
	Error *errorBody `json:"error,omitempty"`
}

func (s *Server) registerBatch(w http.ResponseWriter, r *http.Request) error {
	raw, err := readBatch(w, r)
	if err != nil {
		return err
	}
	results := make([]batchResult, len(raw))
	var good []records.Offer
	var at []int // good[i] is raw[at[i]]
	for i, text := range raw {
		offer, err := records.ParseOffer(text)
		if err != nil {
			results[i] = failed(err)
			continue
		}
		good, at = append(good, offer), append(at, i)
	}
	if len(good) > 0 {
		outcomes, err := s.Registrar.RegisterBatch(r.Context(), good)
		if err != nil {
			return err
		}
		for i, o := range outcomes {
			if o.Err != nil {
				results[at[i]] = failed(o.Err)
			} else {
				results[at[i]] = batchResult{Receipt: &o.Receipt}
			}
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"results": results})
	return nil
}

func failed(err error) batchResult {
	_, body := bodyOf(err)
	return batchResult{Error: &body}
}

func (s *Server) list(w http.ResponseWriter, _ *http.Request) error {
	own := s.Registrar.OwnAll()
	views := make([]records.View, len(own))
	for i, r := range own {
		views[i] = records.ViewOf(r)
	}
	writeJSON(w, http.StatusOK, map[string]any{"records": views})
	return nil
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) error {
	rec, err := s.Registrar.Own(r.PathValue("id"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, records.ViewOf(rec))
	return nil
}

// update takes the id from the path; the body may repeat it, but not contradict it.
func (s *Server) update(w http.ResponseWriter, r *http.Request) error {
	offer, err := readOffer(w, r)
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	if offer.ID == "" {
		offer.ID = id
	}
	if offer.ID != id {
		return fault.Invalidf("id", offer.ID, "differs from the id in the path, %q", id)
	}
	receipt, err := s.Registrar.Update(r.Context(), offer)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, receipt)
	return nil
}

func (s *Server) withdraw(w http.ResponseWriter, r *http.Request) error {
	receipt, err := s.Registrar.Withdraw(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, receipt)
	return nil
}

func (s *Server) resolve(w http.ResponseWriter, r *http.Request) error {
	rec, err := s.Finder.Resolve(r.Context(), r.URL.Query().Get("key"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, records.ViewOf(rec))
	return nil
}

func readOffer(w http.ResponseWriter, r *http.Request) (records.Offer, error) {
	body, err := readBody(w, r, maxBody)
	if err != nil {
		return records.Offer{}, err
	}
	return records.ParseOffer(body)
}

// readBatch splits {"records": [...]} without looking into the records.
func readBatch(w http.ResponseWriter, r *http.Request) ([]json.RawMessage, error) {
	body, err := readBody(w, r, maxBatch)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, fault.Invalidf("body", nil, "must be a JSON object: %v", err)
	}
	for name := range fields {
		if name != "records" {
			return nil, fault.Invalidf(name, nil, "unknown field")
		}
	}
	var raw []json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(fields["records"])).Decode(&raw); err != nil {
		return nil, fault.Invalidf("records", nil, "must be a list of records")
	}
	if len(raw) == 0 || len(raw) > discovery.MaxBatch {
		return nil, fault.Invalidf("records", len(raw), "must have 1 to %d entries", discovery.MaxBatch)
	}
	return raw, nil
}

// readBody reads a bounded body.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &fault.Error{Kind: fault.TooLarge, Field: "body", Err: fmt.Errorf("is over %d bytes", limit)}
	case err != nil:
		return nil, &fault.Error{Kind: fault.Invalid, Field: "body", Err: err}
	case len(body) == 0:
		return nil, fault.Invalidf("body", nil, "is empty")
	}
	return body, nil
}
