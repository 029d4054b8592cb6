package inbox

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// rawText is a header's name or value that is not UTF-8. It stands in the place of a value; of a name, in the name.
type rawText struct {
	Base64 []byte `json:"base64"`
}

// rawName begins a name that is not UTF-8, or that begins so itself.
const rawName = "base64:"

// headersText returns the headers as JSON, or nil. Nothing of them is lost: what is not UTF-8 is kept in base64. The
// column is json, and not jsonb, for that one refuses a NUL.
func headersText(headers map[string]string) (any, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	all := make(map[string]any, len(headers))
	for name, value := range headers {
		if !utf8.ValidString(name) || len(name) >= len(rawName) && name[:len(rawName)] == rawName {
			name = rawName + base64.StdEncoding.EncodeToString([]byte(name))
		}
		if utf8.ValidString(value) {
			all[name] = value
		} else {
			all[name] = rawText{[]byte(value)}
		}
	}
	text, err := json.Marshal(all)
	return ascii(string(text)), err
}

// ascii escapes what is not ASCII in JSON: a database of another encoding may have no place for it.
func ascii(text string) string {
	var s strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			s.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&s, `\u%04x`, unit)
		}
	}
	return s.String()
}

// parseHeaders is the way back.
func parseHeaders(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("read the headers: %w", err)
	}
	headers := make(map[string]string, len(all))
	for name, value := range all {
		if len(name) >= len(rawName) && name[:len(rawName)] == rawName {
			raw, err := base64.StdEncoding.DecodeString(name[len(rawName):])
			if err != nil {
				return nil, fmt.Errorf("read the headers: %w", err)
			}
			name = string(raw)
		}
		var s string
		if value[0] == '{' {
			var raw rawText
			if err := json.Unmarshal(value, &raw); err != nil {
				return nil, fmt.Errorf("read the headers: %w", err)
			}
			s = string(raw.Base64)
		} else if err := json.Unmarshal(value, &s); err != nil {
			return nil, fmt.Errorf("read the headers: %w", err)
		}
		headers[name] = s
	}
	return headers, nil
}
