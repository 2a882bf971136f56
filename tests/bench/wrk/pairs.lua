-- Pairs of calls over one thread of wrk: a request is placed, and later the same request is finished.
-- Arguments: SPEAKS BODIES PREFIX. BODIES has a demand on each line, cut in two by "@ID@", where PREFIX and a number go.
--   SPEAKS = answered: the id to finish with is in the answer to the placement ("placement_id"; an echo has only the
--            request_id). Whichever connection is free next finishes it.
--   SPEAKS = numbered: the caller makes the id. It is finished so many requests later that the answer is long there,
--            and answers are not even looked at, which is kindest to the server.

local LAG = 256 -- eight rounds of 32 connections

local heads, tails = {}, {}
local prefix, speaks
local number, turn = 0, 0
local waiting, first, last = {}, 1, 0

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  speaks, prefix = args[1], args[3]
  for line in io.lines(args[2]) do
    local head, tail = line:match("^(.*)@ID@(.*)$")
    table.insert(heads, head)
    table.insert(tails, tail)
  end
  wrk.headers["Content-Type"] = "application/json"
  finished, matched, failed = 0, 0, ""
  if speaks == "answered" then
    response = answered
  end
end

local function demand()
  number = number + 1
  local line = (number - 1) % #heads + 1
  return heads[line] .. prefix .. number .. tails[line]
end

local verified = false

local function answered_next()
  if first > last then
    return wrk.format("POST", "/v1/placements", nil, demand())
  end
  local id = waiting[first]
  waiting[first] = nil
  first = first + 1
  return wrk.format("POST", "/v1/placements/" .. id .. "/events", nil, '{"type":"finished","output_tokens":128}')
end

local function numbered_next()
  turn = turn + 1
  if turn <= 2 * LAG or turn % 2 == 0 then
    return wrk.format("POST", "/select_and_reserve", nil, demand())
  end
  return wrk.format("DELETE", "/reservations/" .. prefix .. (turn - 1) / 2 - LAG + 1)
end

function request()
  if not verified then -- wrk asks once without sending
    verified = true
    return wrk.format("GET", "/")
  end
  if speaks == "answered" then
    return answered_next()
  end
  return numbered_next()
end

function answered(status, headers, body)
  if status ~= 200 then
    failed = status .. " " .. body:sub(1, 300)
    return
  end
  local id = body:match('"placement_id":"([^"]+)"') or body:match('"request_id":"([^"]+)"')
  if id then
    last = last + 1
    waiting[last] = id
    matched = matched + (tonumber(body:match('"matched_tokens":(%d+)')) or 0)
  else
    finished = finished + 1
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format(
    'RESULT {"requests":%d,"duration_us":%d,"p99_us":%d,"finished":%d,"matched_tokens":%d,"refused":%d,"broken":%d,"failed":"%s"}',
    summary.requests, summary.duration, latency:percentile(99), threads[1]:get("finished"), threads[1]:get("matched"),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    (threads[1]:get("failed"):gsub('[\\"%c]', "'"))))
end
