package trade

import (
	"context"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/internal/trade/ledger"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

// Bounds of the protocol of requests.
const (
	service     = "blackhole.trade"
	maxMessage  = 16 << 10 // bytes; a record has less
	maxQuotes   = 16       // keys of one request
	maxStreams  = 256
	peerStreams = 8
	idle        = time.Minute
	frameTime   = 10 * time.Second
	serveTime   = 10 * time.Second // work on one request

	requestRate, requestBurst = 20, 100 // requests of one consumer, and of all consumers behind one address
	maxKnown                  = 4096    // consumers and addresses with a rate
)

// handle answers one request of a consumer.
func (d *Desk) handle(s *rpc.Stream, m proto.Message, malformed error) (proto.Message, error) {
	if malformed != nil {
		return &pb.Response{Refusal: rpc.Refuse(malformed)}, nil
	}
	ctx, cancel := context.WithTimeout(d.life, serveTime)
	defer cancel()
	by := d.consumerOf(s.Conn())
	if !d.rates.Of(by.ID).Allow() || by.Prefix != "" && !d.rates.Of(by.Prefix).Allow() {
		err := fault.New("", fault.LimitReached, "more than %d requests a second of you or of your network: try again later", requestRate)
		d.refused(err)
		return &pb.Response{Refusal: rpc.Refuse(err)}, nil
	}
	req, resp := m.(*pb.Request), &pb.Response{}
	if q := req.GetQuote(); q != nil {
		quotes, err := d.quotes(by, q.GetKeys())
		return &pb.Response{Quotes: quotes, Refusal: rpc.Refuse(err)}, nil
	}
	e, err := d.answer(ctx, by, req, resp)
	if err == nil {
		resp.LeftMs = uint64(d.granter.current.Load().Left(e.Token, d.now()).Milliseconds())
		resp.Grant, err = d.signed(e)
	}
	if err != nil {
		d.refused(err)
	}
	resp.Refusal = rpc.Refuse(err)
	if fault.KindOf(err) == fault.PaymentRequired {
		resp.Terms, _ = fault.ValueOf(err).([]byte)
	}
	return resp, nil
}

// answer does what a consumer asks for. A consumer that names an old version of an offer gets the newest one.
func (d *Desk) answer(ctx context.Context, by ledger.Consumer, req *pb.Request, resp *pb.Response) (*pb.Entry, error) {
	switch op := req.GetOp().(type) {
	case *pb.Request_Reserve:
		key, err := records.ParseKey(op.Reserve.GetKey())
		if err != nil {
			return nil, err
		}
		if key.Name.Provider != d.Host.ID() {
			return nil, fault.Refused(fault.Invalid, "key", "names another provider")
		}
		if err := records.CheckID("request_id", op.Reserve.GetRequestId()); err != nil {
			return nil, err
		}
		if n := len(op.Reserve.GetProof()); n > maxProof {
			return nil, fault.Invalidf("proof", n, "must have at most %d bytes", maxProof)
		}
		hold := op.Reserve.GetHold()
		op.Reserve.Hold = hold || d.hooks.gates()
		e, err := d.granter.do(ctx, true, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
			t, err := d.termsOf(key.Name.ID)
			if err != nil {
				return nil, err
			}
			return l.Reserve(by, op.Reserve, t, now, time.Now())
		})
		if err == nil && !hold {
			return d.hooks.activate(ctx, e, op.Reserve.GetProof())
		}
		if fault.FieldOf(err) == "sequence" {
			if newest, err := d.Own(key.Name.ID); err == nil {
				resp.Record = newest.Envelope()
			}
		}
		return e, err
	case *pb.Request_Extend:
		if id := op.Extend.GetRequestId(); id != "" {
			if err := records.CheckID("request_id", id); err != nil {
				return nil, err
			}
		}
		holder := func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
			return l.Holder(by.ID, op.Extend.GetToken(), now)
		}
		if d.hooks.gates() {
			e, err := d.granter.do(ctx, true, holder)
			if err == nil && e.State == api.Grant_STATE_ACTIVE {
				err = d.hooks.extend(ctx, e, op.Extend)
			} else if err == nil {
				e, err = d.hooks.activate(ctx, e, nil)
			}
			if err != nil || e.State != api.Grant_STATE_ACTIVE {
				return e, err
			}
		}
		return d.granter.do(ctx, true, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
			e, err := holder(l, now)
			if err != nil {
				return nil, err
			}
			t, err := d.termsOf(e.OfferId)
			if err != nil {
				return nil, err
			}
			return l.Extend(by.ID, op.Extend, t, now)
		})
	case *pb.Request_Release:
		return d.granter.do(ctx, false, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
			return l.Release(by.ID, op.Release.GetToken(), now)
		})
	case *pb.Request_Get:
		if e := d.granter.current.Load().Get(by.ID, op.Get.GetRequestId()); e != nil {
			return e, nil
		}
		return nil, fault.Refused(fault.NotFound, "request_id", "names no grant of yours")
	}
	return nil, fault.New("", fault.Unsupported, "this version does not support the operation")
}

// quotes says what is free of own offers, and what a consumer may take of it. It reads memory alone.
func (d *Desk) quotes(by ledger.Consumer, keys []string) ([]*api.Quote, error) {
	if len(keys) == 0 || len(keys) > maxQuotes {
		return nil, fault.Invalidf("keys", len(keys), "must be 1 to %d of one provider", maxQuotes)
	}
	if err := d.granter.refuses(); err != nil {
		return nil, err
	}
	all, l := make([]*api.Quote, len(keys)), d.granter.current.Load()
	for i, text := range keys {
		q := &api.Quote{Key: text}
		all[i] = q
		key, err := records.ParseKey(text)
		if err == nil && key.Name.Provider != d.Host.ID() {
			err = fault.Refused(fault.Invalid, "key", "names another provider")
		}
		if err != nil {
			return nil, fault.Invalidf(fmt.Sprintf("keys[%d]", i), text, "%s", fault.Message(err))
		}
		t, err := d.termsOf(key.Name.ID)
		if err != nil {
			q.Refusal = rpc.Refuse(err)
			continue
		}
		q.Sequence, q.Free, q.Total, q.Most = t.Sequence, l.Free(t), t.Total, l.Most(by, t)
		q.Price, q.Currency, q.PriceUnit = t.Price, t.Currency, t.PriceUnit
	}
	return all, nil
}

// grantOf returns the grant that an entry of the own ledger stands for.
func (d *Desk) grantOf(e *pb.Entry) *api.Grant {
	return &api.Grant{
		Token: e.Token, Key: e.Key, Sequence: e.Sequence, ProviderId: d.Host.ID().String(), ConsumerId: e.ConsumerId, Units: e.Units, TtlMs: e.TtlMs,
		State: e.State, RequestId: e.RequestId, IssuedMs: e.IssuedMs,
		Price: e.Price, Currency: e.Currency, PriceUnit: e.PriceUnit, Reason: e.Reason, Handover: e.Handover,
	}
}

func (d *Desk) signed(e *pb.Entry) (*pb.SignedGrant, error) {
	return Sign(d.Network, d.Key, d.grantOf(e))
}

// domain returns what the signatures of grants begin with.
func domain(n network.Name) string { return n.Domain("grant") + ":" }

// Sign signs a grant in a network. Error: Internal.
func Sign(n network.Name, key crypto.PrivKey, g *api.Grant) (*pb.SignedGrant, error) {
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
	if err != nil {
		return nil, fault.As("trade.Sign", fault.Internal, err)
	}
	signature, err := key.Sign(append([]byte(domain(n)), content...))
	return &pb.SignedGrant{Grant: content, Signature: signature}, fault.As("trade.Sign", fault.Internal, err)
}

// Verify returns a grant that its provider signed in a network. Error: Unauthentic.
func Verify(n network.Name, signed *pb.SignedGrant) (*api.Grant, error) {
	const op = "trade.Verify"
	g := &api.Grant{}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(signed.GetGrant(), g); err != nil {
		return nil, fault.As(op, fault.Unauthentic, err)
	}
	provider, err := peer.Decode(g.GetProviderId())
	if err != nil {
		return nil, fault.As(op, fault.Unauthentic, err)
	}
	key, err := provider.ExtractPublicKey() // an Ed25519 id contains its key
	if err != nil {
		return nil, fault.As(op, fault.Unauthentic, err)
	}
	if ok, err := key.Verify(append([]byte(domain(n)), signed.GetGrant()...), signed.GetSignature()); err != nil || !ok {
		return nil, fault.New(op, fault.Unauthentic, "the signature is not that of %s in the network %s", provider, n)
	}
	return g, nil
}
