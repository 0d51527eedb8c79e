package httpapi

import (
	"context"
	"encoding/json"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/pkg/records/jsonform"
)

// stateText bounds the text of the offers that one event of a state joins: a viewer's queue holds several.
const stateText = 32 << 10

// offers opens the watch of offers at once, so that the answer to a wrong question is an error. The first run of
// the source closes it.
func (e *eventsAPI) offers(ctx context.Context, q interest) (source, error) {
	first, err := e.finder.Watch(ctx, q.offers, q.after[topicOffers])
	if err != nil {
		return nil, err
	}
	at := q.after[topicOffers]
	return func(ctx context.Context, say func(message) error) error {
		watcher := first
		if first = nil; watcher == nil {
			if watcher, err = e.finder.Watch(ctx, q.offers, at); err != nil {
				return err
			}
		}
		defer watcher.Close()
		told := offerTeller{say: say, within: at == ""}
		for {
			ev, err := watcher.Next(ctx)
			if err != nil {
				return err
			}
			if ev.Cursor != "" {
				at = ev.Cursor
			}
			if err := told.tell(ev); err != nil {
				return err
			}
		}
	}, nil
}

// offerEvent is the data of an event of offers.
type offerEvent struct {
	Kind   discovery.EventKind `json:"kind"` // as of /v1/discovery/watch; or state, with a part of the Offers that match
	Offer  json.RawMessage     `json:"offer,omitempty"`
	Reason string              `json:"reason,omitempty"`

	Complete bool           `json:"complete,omitempty"` // of progress
	Beyond   *query.LeftOut `json:"beyond,omitempty"`   // of progress
}

// offerTeller turns the events of a watch into messages. The offers of a state share events: 20,000 events of one offer
// each cost the peer and the viewer a multiple of the offers themselves.
type offerTeller struct {
	say    func(message) error
	within bool   // a state, which ends with its Progress
	part   []byte // of the state, not sent yet
}

func (o *offerTeller) tell(ev discovery.Event) error {
	if o.within && ev.Kind == discovery.Added {
		return o.add(ev.Record)
	}
	if err := o.flush(); err != nil {
		return err
	}
	switch ev.Kind {
	case discovery.Reset:
		o.within = true
	case discovery.Progress:
		o.within = false
	}
	data := offerEvent{Kind: ev.Kind, Reason: ev.Reason, Complete: ev.Complete, Beyond: ev.Beyond}
	if ev.Record != nil {
		data.Offer = appendOffer(nil, ev.Record)
	}
	return o.say(message{topicOffers, dialect.JSON(data), ev.Cursor})
}

// add puts an offer into the part of the state, and sends a part that is large enough.
func (o *offerTeller) add(r *records.Record) error {
	if o.part == nil {
		o.part = append(make([]byte, 0, stateText+2*records.MaxSize), `{"kind":"state","offers":[`...)
	} else {
		o.part = append(o.part, ',')
	}
	if o.part = appendOffer(o.part, r); len(o.part) < stateText {
		return nil
	}
	return o.flush()
}

func (o *offerTeller) flush() error {
	if o.part == nil {
		return nil
	}
	data := append(o.part, "]}"...)
	o.part = nil // the viewer keeps the old one
	return o.say(message{topic: topicOffers, data: data})
}

// appendOffer appends the part of a record that lists and maps show, as JSON. Its key leads to all of it.
//
// It reads the four texts that it needs from the signed bytes: to decode all of them, and to encode by reflection, took
// most of the time of a state.
func appendOffer(dst []byte, r *records.Record) []byte {
	t, f := scan(r.Payload()), r.Facts()
	dst = append(dst, `{"key":`...)
	key := r.Key()
	dst = jsonform.AppendString(dst, records.Namespace+"/"+key.Type+"/"+subtypeOf(key)+"/"+string(key.Cell)+"/"+string(t.provider)+"/"+key.Name.ID)
	dst = member(dst, `,"id":`, key.Name.ID)
	dst = append(append(append(dst, `,"provider_id":"`...), t.provider...), '"')
	dst = member(dst, `,"type":`, key.Type)
	dst = member(dst, `,"subtype":`, key.Subtype)
	dst = member(dst, `,"name":`, t.name)
	if p, ok := f.Place(); ok {
		dst = jsonform.AppendNumber(append(dst, `,"latitude":`...), p.Lat)
		dst = jsonform.AppendNumber(append(dst, `,"longitude":`...), p.Lon)
	}
	dst = member(dst, `,"country":`, f.Country)
	dst = member(dst, `,"city":`, t.city)
	if f.Has(records.KnownPrice) {
		dst = jsonform.AppendNumber(append(dst, `,"price":`...), f.Price)
		dst = member(dst, `,"currency":`, f.Currency)
		dst = member(dst, `,"price_unit":`, f.PriceUnit)
	}
	dst = r.AppendCapabilities(dst)
	if t.health {
		dst = member(dst, `,"health":`, f.Status.String())
	}
	dst = strconv.AppendUint(append(dst, `,"sequence":`...), r.Sequence(), 10)
	dst = jsonform.AppendTime(append(dst, `,"updated_at":`...), r.Issued())
	dst = jsonform.AppendTime(append(dst, `,"expires_at":`...), r.Expires())
	return append(dst, '}')
}

// member appends a text with its name, unless it is empty.
func member[S string | []byte](dst []byte, name string, value S) []byte {
	if len(value) == 0 {
		return dst
	}
	return jsonform.AppendString(append(dst, name...), value)
}

func subtypeOf(k records.Key) string {
	if k.Subtype == "" {
		return records.AnySubtype
	}
	return k.Subtype
}

// scanned are the parts of a record that Record does not keep decoded.
type scanned struct {
	provider, name, city []byte
	health               bool // stated
}

// Numbers of fields of ServiceRecord, ServiceMetadata and Location.
const (
	fieldProvider protowire.Number = 2
	fieldMetadata protowire.Number = 3
	fieldLocation protowire.Number = 5
	fieldHealth   protowire.Number = 7
	fieldName     protowire.Number = 3 // of the metadata
	fieldCity     protowire.Number = 5 // of the location
)

// scan reads a verified payload.
func scan(payload []byte) (s scanned) {
	texts(payload, func(n protowire.Number, value []byte) {
		switch n {
		case fieldProvider:
			s.provider = value
		case fieldMetadata:
			last(&s.name, value, fieldName)
		case fieldLocation:
			last(&s.city, value, fieldCity)
		case fieldHealth:
			s.health = true
		}
	})
	return s
}

// last sets text to the last field with a number. A later message of the same field adds to an earlier one.
func last(text *[]byte, in []byte, number protowire.Number) {
	texts(in, func(n protowire.Number, value []byte) {
		if n == number {
			*text = value
		}
	})
}

// texts calls visit with each field of a message that has a length.
func texts(in []byte, visit func(protowire.Number, []byte)) {
	for len(in) > 0 {
		number, kind, n := protowire.ConsumeTag(in)
		if n < 0 {
			return
		}
		in = in[n:]
		if n = protowire.ConsumeFieldValue(number, kind, in); n < 0 {
			return
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(in)
			visit(number, value)
		}
		in = in[n:]
	}
}
