// Package evidence lets a peer show others that a keeper hides a record which it holds. A keeper signs a receipt for the records that it
// takes, and each of its answers. An answer that should list a record of an earlier receipt, and does not, is an Omission: anybody can
// verify it.
//
// How can an honest keeper never be shown to hide something? Each receipt and each answer names the keeper's memory, a number that
// changes before the keeper loses a record for want of room, as its keeper no longer, or by a restart. Receipts have numbers within a
// memory, and an answer names the last one from before its search. So the two prove an omission without a clock and without a word about
// cells: the keeper had the record, lost none since, and did not list it. What remains are newer versions, which the accused can show.
//
// A keeper that names another memory in each answer is never shown to hide something, and one without a signature is not believed.
//
// The package is pure: it has no clock, no network and no goroutine.
package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	// Life is the time in which an omission counts, by the time of the answer: two of the hours after which a keeper is believed again.
	Life = 2 * time.Hour
	// MaxPath bounds the nodes between a record and the root of a receipt.
	MaxPath = 10

	skew      = 2 * time.Minute // tolerated difference of clocks
	sizeEntry = 16 + 8          // of a listed record
)

// kind is what a signature is about.
type kind struct {
	name   string
	domain func(network.Name) string
}

func receipts() kind {
	return kind{"receipt", func(n network.Name) string { return n.Domain("receipt") + ":" }}
}

func answers() kind {
	return kind{"answer", func(n network.Name) string { return n.Domain("answer") + ":" }}
}

// Signer signs what a keeper says. It is safe for concurrent use. A nil Signer signs nothing.
type Signer struct {
	network network.Name
	key     crypto.PrivKey
	base    uint64 // drawn anew by each process
	losses  func() uint64
	given   atomic.Uint64 // receipts
}

// NewSigner returns the signer of a keeper. Base is a random number. Losses counts the records that the keeper lost, each before a search
// can miss it.
func NewSigner(n network.Name, key crypto.PrivKey, base uint64, losses func() uint64) *Signer {
	return &Signer{network: n, key: key, base: base, losses: losses}
}

func (s *Signer) memory() uint64 { return s.base + s.losses() }

func (s *Signer) sign(k kind, m proto.Message) (terms, signature []byte, err error) {
	if terms, err = (proto.MarshalOptions{Deterministic: true}).Marshal(m); err != nil {
		return nil, nil, fault.As("evidence.sign", fault.Internal, err)
	}
	signature, err = s.key.Sign(append([]byte(k.domain(s.network)), terms...))
	return terms, signature, fault.Wrap("evidence.sign", err)
}

// Receipt signs the digests that held returns. Held must look into the index itself, since only then no loss comes between. Without a
// digest there is no receipt.
func (s *Signer) Receipt(held func() [][32]byte) (*pb.Receipt, error) {
	if s == nil {
		return nil, nil
	}
	memory := s.memory()
	digests := held()
	if len(digests) == 0 {
		return nil, nil
	}
	root, _ := tree(digests)
	terms, signature, err := s.sign(receipts(), &pb.ReceiptTerms{Memory: memory, Number: s.given.Add(1), Root: root[:]})
	return &pb.Receipt{Terms: terms, Signature: signature}, err
}

// Given counts the receipts so far. An answer names the count from before its search.
func (s *Signer) Given() uint64 {
	if s == nil {
		return 0
	}
	return s.given.Load()
}

// Answer signs a response, after the search: the records in it, and when and after how many receipts the search began.
func (s *Signer) Answer(req *pb.QueryRequest, resp *pb.QueryResponse, listed []*records.Record, given uint64, at time.Time) (err error) {
	if s == nil {
		return nil
	}
	m := &pb.AnswerTerms{
		Memory: s.memory(), Receipts: given, TimeMs: uint64(max(at.UnixMilli(), 0)),
		Withheld: resp.Withheld, Bound: resp.Bound, Partial: partial(resp),
	}
	if _, m.Question, err = questionOf(req); err != nil {
		return err
	}
	for _, r := range listed {
		m.Listed = append(m.Listed, entry(r)...)
	}
	resp.Signed = new(pb.SignedAnswer)
	resp.Signed.Terms, resp.Signed.Signature, err = s.sign(answers(), m)
	return err
}

func partial(resp *pb.QueryResponse) bool { return len(resp.NotKept)+len(resp.Splits) > 0 }

func entry(r *records.Record) []byte {
	id := r.Name().Listed()
	return binary.BigEndian.AppendUint64(id[:], r.Sequence())
}

// questionOf returns the canonical bytes of a request and their hash.
func questionOf(req *pb.QueryRequest) (question, hash []byte, err error) {
	if question, err = (proto.MarshalOptions{Deterministic: true}).Marshal(req); err != nil {
		return nil, nil, fault.As("evidence", fault.Internal, err)
	}
	sum := sha256.Sum256(question)
	return question, sum[:], nil
}

// open verifies the signature of a keeper over terms, and decodes them.
func open(n network.Name, k kind, by peer.ID, terms, signature []byte, m proto.Message) error {
	key, err := by.ExtractPublicKey() // an Ed25519 id contains its key
	if err != nil {
		return fault.As("evidence", fault.Unauthentic, err)
	}
	if ok, err := key.Verify(append([]byte(k.domain(n)), terms...), signature); err != nil || !ok {
		return fault.New("evidence", fault.Unauthentic, "the signature of the %s is not that of %s in the network %s", k.name, by, n)
	}
	if proto.Unmarshal(terms, m) != nil {
		return fault.New("evidence", fault.Invalid, "malformed %s", k.name)
	}
	return nil
}

// Held verifies the receipt of a keeper for some records, and returns the beginning of an omission for each: without envelope, question
// and answer.
func Held(n network.Name, by peer.ID, m *pb.Receipt, digests [][32]byte) ([]*pb.Omission, error) {
	var terms pb.ReceiptTerms
	if err := open(n, receipts(), by, m.GetTerms(), m.GetSignature(), &terms); err != nil {
		return nil, err
	}
	root, paths := tree(digests)
	if !bytes.Equal(root[:], terms.Root) {
		return nil, fault.New("evidence.Held", fault.Unauthentic, "the receipt is for other records")
	}
	out := make([]*pb.Omission, len(digests))
	for i, path := range paths {
		out[i] = &pb.Omission{Keeper: []byte(by), Receipt: m, Path: path}
	}
	return out, nil
}

// Check verifies that a keeper signed the response as it is. Opened are the records in it that the asker reads. Errors: Unsupported
// without a signature; Unauthentic for one that contradicts the response.
func Check(n network.Name, by peer.ID, req *pb.QueryRequest, resp *pb.QueryResponse, opened []*records.Record) error {
	const op = "evidence.Check"
	if resp.GetSigned() == nil {
		return fault.New(op, fault.Unsupported, "the keeper does not sign its answers")
	}
	var terms pb.AnswerTerms
	if err := open(n, answers(), by, resp.Signed.Terms, resp.Signed.Signature, &terms); err != nil {
		return fault.Wrap(op, err)
	}
	_, hash, err := questionOf(req)
	if err != nil {
		return fault.Wrap(op, err)
	}
	same := bytes.Equal(hash, terms.Question) && len(terms.Listed) == sizeEntry*len(resp.Envelopes) &&
		terms.Withheld == resp.Withheld && terms.Bound == resp.Bound && terms.Partial == partial(resp)
	listed := make(map[string]bool, len(resp.Envelopes))
	for e := range slices.Chunk(terms.Listed, sizeEntry) {
		listed[string(e)] = true
	}
	for _, r := range opened {
		same = same && listed[string(entry(r))]
	}
	if !same {
		return fault.New(op, fault.Unauthentic, "the keeper signed another answer")
	}
	return nil
}

// lists reports whether a list has a record, in this version or a later one.
func lists(list []byte, r *records.Record) bool {
	id := r.Name().Listed()
	for e := range slices.Chunk(list, sizeEntry) {
		if len(e) == sizeEntry && bytes.Equal(e[:len(id)], id[:]) {
			return binary.BigEndian.Uint64(e[len(id):]) >= r.Sequence()
		}
	}
	return false
}

// Omission is a proof that a keeper left out a record that it held.
type Omission struct {
	Keeper  peer.ID
	Record  *records.Record
	At      time.Time // of the answer
	Message *pb.Omission
}

// Complete returns an omission with the question and the answer of its keeper.
func Complete(held *pb.Omission, envelope []byte, req *pb.QueryRequest, signed *pb.SignedAnswer) (*pb.Omission, error) {
	question, _, err := questionOf(req)
	return &pb.Omission{
		Keeper: held.Keeper, Envelope: envelope, Receipt: held.Receipt, Path: held.Path, Question: question, Answer: signed,
	}, err
}

// Opener verifies an envelope; *records.Verifier implements it.
type Opener interface {
	Open(envelope []byte, now time.Time) (*records.Record, error)
}

// Open verifies an omission in a network. Who believes it must also know that there is no newer version: see Refuted.
//
// Errors: Invalid for a malformed omission; Unauthentic for a wrong signature, that of another network included; those of the record;
// Unsupported for a question of a later version; Conflict for what proves nothing: it is old, the keeper had the right not to list the
// record, or its memory was another one.
func Open(n network.Name, m *pb.Omission, records Opener, now time.Time) (*Omission, error) {
	const op = "evidence.Open"
	by, err := peer.IDFromBytes(m.GetKeeper())
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	var receipt pb.ReceiptTerms
	var answer pb.AnswerTerms
	if err := open(n, receipts(), by, m.GetReceipt().GetTerms(), m.GetReceipt().GetSignature(), &receipt); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if err := open(n, answers(), by, m.GetAnswer().GetTerms(), m.GetAnswer().GetSignature(), &answer); err != nil {
		return nil, fault.Wrap(op, err)
	}
	r, err := records.Open(m.Envelope, now)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	root, ok := climb(r.Digest(), m.Path)
	if !ok || !bytes.Equal(root[:], receipt.Root) {
		return nil, fault.New(op, fault.Invalid, "the receipt does not cover the record")
	}
	o := &Omission{Keeper: by, Record: r, At: time.UnixMilli(int64(min(answer.TimeMs, 1<<53))), Message: m}
	if sum := sha256.Sum256(m.Question); !bytes.Equal(sum[:], answer.Question) {
		return nil, fault.New(op, fault.Invalid, "the answer is not to the question")
	}
	plan, cells, err := parse(m.Question)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	why := ""
	switch age := now.Sub(o.At); {
	case age > Life || age < -skew:
		why = "the answer is old, or from the future"
	case receipt.Memory != answer.Memory || receipt.Number == 0 || receipt.Number > answer.Receipts:
		why = "the keeper may have had no memory of the record"
	case answer.Partial:
		why = "the answer does not claim to be whole"
	case r.Expired(o.At.Add(skew)) || r.Withdrawn() || len(r.Service().GetCritical()) > 0:
		why = "the record was not one to list"
	case !plan.Match(r) || !slices.ContainsFunc(cells, r.In):
		why = "the record does not match the question"
	case answer.Withheld && !ahead(plan, r, answer.Bound):
		why = "other records may rank before it"
	case lists(answer.Listed, r):
		why = "the answer lists it, or a newer version"
	}
	if why != "" {
		return nil, fault.New(op, fault.Conflict, "%s", why)
	}
	return o, nil
}

// Refuted reports whether a version of the record explains the omission: a newer one that may have been known at the time.
func (o *Omission) Refuted(by *records.Record) bool {
	return by != nil && by.Name() == o.Record.Name() && records.Compare(by, o.Record) > 0 && !by.Issued().After(o.At.Add(skew))
}

// parse reads a question. Another form than the canonical one has a part of a later version, which may change what matches.
func parse(question []byte) (*query.Plan, []records.CellKey, error) {
	var req pb.QueryRequest
	if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(question, &req) != nil || req.Query == nil {
		return nil, nil, fault.New("", fault.Invalid, "malformed question")
	}
	if known, _, err := questionOf(&req); err != nil || !bytes.Equal(known, question) {
		return nil, nil, fault.New("", fault.Unsupported, "the question has parts that this version does not know")
	}
	q, err := query.FromProto(req.Query)
	if err != nil {
		return nil, nil, err
	}
	plan, err := query.Compile(q, query.Defaults{})
	if err != nil {
		return nil, nil, err
	}
	cells := make([]records.CellKey, len(req.Cells))
	for i, c := range req.Cells {
		if cells[i], err = records.ParseCellKey(c); err != nil {
			return nil, nil, err
		}
	}
	return plan, cells, nil
}

// ahead reports whether a record surely ranks before all withheld ones. Scores and prices may count otherwise in another version.
func ahead(p *query.Plan, r *records.Record, bound float64) bool {
	switch p.Sort() {
	case query.SortDistance:
		return p.Value(r)+1 < bound // metres
	case query.SortRandom:
		return p.Value(r)+1e-9 < bound
	default:
		return false
	}
}

// Covers verifies that the receipt of a keeper covers a record.
func Covers(n network.Name, held *pb.Omission, r *records.Record) error {
	var terms pb.ReceiptTerms
	if err := open(n, receipts(), peer.ID(held.GetKeeper()), held.GetReceipt().GetTerms(), held.GetReceipt().GetSignature(), &terms); err != nil {
		return err
	}
	if root, ok := climb(r.Digest(), held.Path); !ok || !bytes.Equal(root[:], terms.Root) {
		return fault.New("evidence.Covers", fault.Invalid, "the receipt does not cover the record")
	}
	return nil
}
