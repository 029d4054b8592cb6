package webhook

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

// Standard is the [Provider] of senders that follow the Standard Webhooks specification, Svix among them. Source and
// Secrets are needed.
//
//   - ID: webhook-id, unique for each message of the sender, the same on every retry. It is signed.
//   - Retries: the sender's matter; the specification's example ends after 75 hours and 35 minutes, and many senders
//     let a message be sent again by hand. Its advice to keep ids for 5 minutes covers none of that. Retention: at
//     least 76 hours, or what your sender says, see Resends.
//   - Order: none. Event.Time is the body's "timestamp", when the event occurred, where the body has one: RFC 3339, as
//     fine as the sender writes it. A sender may send old events for the first time, so keys do not carry it.
//   - Signature: webhook-signature, of id, time of the attempt and body. HMAC-SHA256 (v1), and Ed25519 (v1a).
//
// When an endpoint is set up, a sender may send a challenge, unsigned, in the header webhook-challenge. It is answered
// with 204 and webhook-challenge-response: an HMAC under a key that is derived from the first whsec_ of Secrets, and
// good for nothing else. While a secret is rolled, put the one first that the sender asks with. Where there are only
// public keys nothing can be answered: the challenge is refused.
//
// Event.Type is the body's "type". A body that is no JSON is passed on as it is, without type and time.
//
// Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
type Standard struct {
	// Source is the sender's name, the source of the keys. Each sender has its own: two may choose the same id.
	Source string

	// Secrets are "whsec_..." (the prefix may be missing) and public keys "whpk_...", each in base64. Any of them will
	// do: while one is rolled, give both.
	Secrets []string

	// Header is what the names of the headers begin with. Empty means "webhook-"; "svix-" is another one in use.
	Header string

	// Tolerance is how far the signature's time may be from now, on either side. 0 means 5 minutes.
	Tolerance time.Duration

	// Resends is for how long the sender may deliver a message again. 0 means 76 hours.
	Resends time.Duration
}

var errSecret = errors.New("webhook: a secret of Standard.Secrets is neither whsec_ nor whpk_ with base64")

// Sender returns the facts.
func (s Standard) Sender() Sender {
	return Sender{Source: s.Source, Resends: or(s.Resends, 76*time.Hour)}
}

// Validate reports a secret that is missing or unreadable.
func (s Standard) Validate() error {
	_, _, err := s.keys()
	return err
}

// keys returns the secrets, and the public keys.
func (s Standard) keys() (secrets [][]byte, public []ed25519.PublicKey, err error) {
	if s.Tolerance < 0 || s.Resends < 0 {
		return nil, nil, errTolerance
	}
	if err := checkSecrets(s.Secrets); err != nil {
		return nil, nil, err
	}
	for _, text := range s.Secrets {
		encoded, isPublic := strings.CutPrefix(text, "whpk_")
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(encoded, "whsec_"))
		switch {
		case err != nil, len(key) == 0, isPublic && len(key) != ed25519.PublicKeySize:
			return nil, nil, errSecret // and not err, which tells of the secret
		case isPublic:
			public = append(public, key)
		default:
			secrets = append(secrets, key)
		}
	}
	return secrets, public, nil
}

// Verify implements [Provider].
func (s Standard) Verify(r *http.Request, body []byte, at time.Time) (Event, error) {
	secrets, public, err := s.keys()
	if err != nil {
		return Event{}, err
	}
	prefix := s.Header
	if prefix == "" {
		prefix = "webhook-"
	}
	if challenge, ok := only(r.Header, prefix+"challenge"); ok {
		return standardReply(secrets, prefix, challenge)
	}
	id, ok1 := only(r.Header, prefix+"id")
	stamp, ok2 := only(r.Header, prefix+"timestamp")
	header, ok3 := only(r.Header, prefix+"signature")
	// A dot in the id would let one signature stand for two messages: the parts are joined by dots.
	if !ok1 || !ok2 || !ok3 || strings.Contains(id, ".") {
		return Event{}, ErrSignature
	}
	t, ok := parseUnix(stamp)
	macs, sigs, parsed := parseStandard(header)
	if !ok || !parsed {
		return Event{}, ErrSignature
	}
	head := []byte(id + "." + stamp + ".")
	if !signed(secrets, macs, head, body) && !signedByKey(public, sigs, head, body) {
		return Event{}, ErrSignature
	}
	if !fresh(t, at, s.Tolerance) {
		return Event{}, ErrStale
	}
	e := Event{ID: id}
	var p struct {
		Type      string          `json:"type"`
		Timestamp json.RawMessage `json:"timestamp"`
	}
	if json.Unmarshal(body, &p) == nil {
		e.Type = p.Type
		if json.Unmarshal(p.Timestamp, &e.Time) != nil {
			e.Time = time.Time{}
		}
	}
	return e, nil
}

// standardReply proves that this endpoint knows a secret. Anybody may ask, so the key is not the one of signatures:
// else whoever asks for the right challenge would get a signature.
func standardReply(secrets [][]byte, prefix, challenge string) (Event, error) {
	if len(secrets) == 0 {
		return Event{}, ErrSignature
	}
	proof := "v1," + base64.StdEncoding.EncodeToString(mac(mac(secrets[0], []byte("wev-v1")), []byte(challenge)))
	h := http.Header{}
	h.Set(prefix+"challenge-response", proof)
	return Event{Reply: []byte{}, ReplyHeader: h}, nil
}

// parseStandard reads "v1,base64 v1a,base64". What is of another version, or no base64, is ignored.
func parseStandard(header string) (macs, sigs [][]byte, ok bool) {
	for entry := range strings.SplitSeq(header, " ") {
		version, text, _ := strings.Cut(entry, ",")
		value, err := base64.StdEncoding.DecodeString(text)
		switch {
		case err != nil:
		case version == "v1":
			macs = append(macs, value)
		case version == "v1a":
			sigs = append(sigs, value)
		}
	}
	n := len(macs) + len(sigs)
	return macs, sigs, n > 0 && n <= maxSignatures
}

func signedByKey(public []ed25519.PublicKey, sigs [][]byte, head, body []byte) bool {
	if len(public) == 0 || len(sigs) == 0 {
		return false
	}
	content := bytes.Join([][]byte{head, body}, nil)
	for _, key := range public {
		for _, sig := range sigs {
			if ed25519.Verify(key, content, sig) {
				return true
			}
		}
	}
	return false
}
