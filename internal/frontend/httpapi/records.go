package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

func (s *Server) register(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	offer, err := records.ParseOffer(body)
	if err != nil {
		return within("body", err)
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
	release, err := s.batches.take("batches")
	if err != nil {
		return err
	}
	defer release()
	entries, err := readBatch(http.MaxBytesReader(w, r.Body, maxBatch))
	if err != nil {
		return within("body", err)
	}
	offers, errs := make([]records.Offer, len(entries)), make([]error, len(entries))
	for i, e := range entries {
		offers[i], errs[i] = e.offer, within("body", e.err)
	}
	outcomes, err := discovery.RegisterAccepted(r.Context(), s.Registrar, offers, errs)
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
	writeJSON(w, http.StatusOK, map[string]any{"results": results})
	return nil
}

func failed(err error) batchResult {
	_, body := bodyOf(err)
	return batchResult{Error: &body}
}

func (s *Server) list(w http.ResponseWriter, _ *http.Request) error {
	s.writeAppended(w, func(dst []byte) []byte {
		dst = append(dst, `{"records":[`...)
		for i, r := range s.Registrar.OwnAll() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = r.AppendJSON(dst)
		}
		return append(dst, "]}"...)
	})
	return nil
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) error {
	rec, err := s.Registrar.Own(r.PathValue("id"))
	if err != nil {
		return err
	}
	s.writeAppended(w, rec.AppendJSON)
	return nil
}

// update takes the id from the path; the body may repeat it, but not contradict it.
func (s *Server) update(w http.ResponseWriter, r *http.Request) error {
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
		return fault.Invalidf("id", offer.ID, "differs from the id in the path, %q", id)
	}
	receipt, err := s.Registrar.Update(r.Context(), offer)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, receipt)
	return nil
}

// withID puts an id into the text of an object that has none. Other text stays as it is,
// for the parser to refuse.
func withID(body []byte, id string) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil || fields == nil || fields["id"] != nil {
		return body
	}
	quoted, err := json.Marshal(id)
	if err != nil {
		return body // impossible: strings have a JSON form
	}
	_, rest, _ := bytes.Cut(body, []byte("{"))
	if len(fields) > 0 {
		quoted = append(quoted, ',')
	}
	return slices.Concat([]byte(`{"id":`), quoted, rest)
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
	values, err := input.Query(r.URL)
	if err != nil {
		return err
	}
	key, err := input.Single(values, "key")
	if err != nil {
		return err
	}
	rec, err := s.Finder.Resolve(r.Context(), key)
	if err != nil {
		return err
	}
	s.writeAppended(w, rec.AppendJSON)
	return nil
}
