package main

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem/webhook"
)

// AppStore is the provider of App Store Server Notifications, version 2.
//
//   - ID: notificationUUID, unique for each notification, the same on every retry.
//   - Retries: five, 1, 12, 24, 48 and 72 hours after the attempt before, 157 hours in all; none in the sandbox.
//     Apple documents them for answers of 40x and 50x, and is reported not to repeat after a 400. Retention: at least
//     157 hours.
//   - Order: none is promised. Event.Time is signedDate, in milliseconds, the same on every retry. Apple says to keep
//     what has the latest one: it is made for a guard.
//   - Signature: a JWS, whose header holds the certificates up to Apple's root. It has no time limit of its own, so a
//     replay is stopped by the key alone, and by the retention.
//
// Apple signs for all apps with one key, and anybody can have it notify any address: so bundle and environment are part
// of the verification.
//
// Sources: https://developer.apple.com/documentation/appstoreservernotifications/notificationuuid, .../signeddate,
// .../responding-to-app-store-server-notifications, .../x5c.
type AppStore struct {
	Roots       *x509.CertPool // Apple Root CA - G3, from https://www.apple.com/certificateauthority
	Bundle      string         // "com.example.app"
	Environment string         // "Production" or "Sandbox"
}

// What Apple's certificates for these signatures are marked with.
var (
	oidLeaf         = asn1.ObjectIdentifier{1, 2, 840, 113635, 100, 6, 11, 1}
	oidIntermediate = asn1.ObjectIdentifier{1, 2, 840, 113635, 100, 6, 2, 1}
)

// Sender implements webhook.Provider.
func (a AppStore) Sender() webhook.Sender {
	return webhook.Sender{Source: "app_store", Resends: dedup.AppStoreResends, Dated: true}
}

// Validate reports what is missing.
func (a AppStore) Validate() error {
	if a.Roots == nil || a.Bundle == "" || a.Environment == "" {
		return errors.New("app store: Roots, Bundle and Environment are needed")
	}
	return nil
}

type about struct {
	BundleID              string `json:"bundleId"`
	Environment           string `json:"environment"`
	SignedTransactionInfo string `json:"signedTransactionInfo"`
}

type notification struct {
	Type       string `json:"notificationType"`
	Subtype    string `json:"subtype"`
	UUID       string `json:"notificationUUID"`
	SignedDate int64  `json:"signedDate"` // milliseconds
	Data       *about `json:"data"`
	Summary    *about `json:"summary"`
}

// Verify implements webhook.Provider.
func (a AppStore) Verify(_ *http.Request, body []byte, at time.Time) (webhook.Event, error) {
	if err := a.Validate(); err != nil {
		return webhook.Event{}, err
	}
	n, err := a.notification(body, at)
	if err != nil {
		return webhook.Event{}, err
	}
	e := webhook.Event{ID: n.UUID, Type: n.Type, Time: time.UnixMilli(n.SignedDate)}
	if n.Subtype != "" {
		e.Type += "." + n.Subtype
	}
	return e, nil
}

func (a AppStore) notification(body []byte, at time.Time) (n notification, err error) {
	var outer struct {
		SignedPayload string `json:"signedPayload"`
	}
	if json.Unmarshal(body, &outer) != nil || outer.SignedPayload == "" {
		return n, webhook.ErrSignature
	}
	if err := a.open(outer.SignedPayload, at, &n); err != nil {
		return n, err
	}
	of := n.Data
	if of == nil {
		of = n.Summary
	}
	switch {
	case n.UUID == "", n.Type == "", n.SignedDate <= 0, of == nil:
		return n, webhook.ErrMalformed
	case of.BundleID != a.Bundle, of.Environment != a.Environment:
		return n, fmt.Errorf("%w: for another app or environment", webhook.ErrSignature)
	}
	return n, nil
}

// open verifies a JWS, and reads its payload into v.
func (a AppStore) open(token string, at time.Time, v any) error {
	jws, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil || len(jws.Signatures) != 1 {
		return webhook.ErrSignature
	}
	chains, err := jws.Signatures[0].Protected.Certificates(x509.VerifyOptions{
		Roots: a.Roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return webhook.ErrSignature
	}
	// Apple's root signs for many purposes: leaf, intermediate and root, the first two marked for this one.
	chain := chains[0]
	if len(chain) != 3 || !marked(chain[0], oidLeaf) || !marked(chain[1], oidIntermediate) {
		return webhook.ErrSignature
	}
	payload, err := jws.Verify(chain[0].PublicKey)
	if err != nil {
		return webhook.ErrSignature
	}
	if json.NewDecoder(bytes.NewReader(payload)).Decode(v) != nil {
		return webhook.ErrMalformed
	}
	return nil
}

func marked(c *x509.Certificate, oid asn1.ObjectIdentifier) bool {
	for _, e := range c.Extensions {
		if e.Id.Equal(oid) {
			return true
		}
	}
	return false
}

// appStoreStates are the states that a type of notification, or a type and subtype, puts a purchase into.
var appStoreStates = map[string]string{
	"SUBSCRIBED": "active", "DID_RENEW": "active", "ONE_TIME_CHARGE": "active", "REFUND_REVERSED": "active",
	"DID_FAIL_TO_RENEW": "past_due", "EXPIRED": "ended", "REVOKE": "ended", "REFUND": "refunded",
}

// Purchase returns what a notification says of a purchase; ok is false where it says nothing (TEST, for one).
func (a AppStore) Purchase(e webhook.Event, at time.Time) (p Purchase, ok bool, err error) {
	n, err := a.notification(e.Body, at)
	if err != nil {
		return p, false, err
	}
	status, known := appStoreStates[n.Type]
	if !known || n.Data == nil || n.Data.SignedTransactionInfo == "" {
		return p, false, nil
	}
	var t struct {
		Original string `json:"originalTransactionId"` // of the whole subscription; each renewal has a transactionId
		Product  string `json:"productId"`
		BundleID string `json:"bundleId"`
	}
	if err := a.open(n.Data.SignedTransactionInfo, at, &t); err != nil {
		return p, false, err
	}
	if t.Original == "" || t.BundleID != a.Bundle {
		return p, false, webhook.ErrMalformed
	}
	return Purchase{Store: "app_store", ID: t.Original, Product: t.Product, Status: status, UpdatedAt: e.Time}, true, nil
}
