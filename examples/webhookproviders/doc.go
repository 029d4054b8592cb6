// Package webhookproviders shows providers for package webhook, beyond those that it has: Shopify, and Slack with
// Slack's widely used Go library. Copy the file of the sender that you need.
//
// Its tests also hold the library's own providers against what others wrote: stripe-go and the Go library of Standard
// Webhooks sign what ours verify, and verify what ours accept.
package webhookproviders
