// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

/**
 * Bytes in flight.
 *
 * @param sent time of the send, in nanoseconds
 * @param number of this send in its window; the last send has the largest
 */
private[flow] final class Flight(val sent: Long, val bytes: Int, val number: Long)

/** Bound on the bytes in flight. Times are nanoseconds of one clock. */
private[flow] abstract class Window {
  private var inFlightBytes = 0L
  private var count = 0L
  private var lastSendTime = Long.MinValue

  /** The bound, in bytes. If it falls below what is in flight, nothing more is sent. */
  def bytes: Long

  def inFlight: Long = inFlightBytes

  /** Return true if so many more bytes may be sent. If nothing is in flight, any number may. */
  def hasRoom(bytes: Int, now: Long): Boolean = inFlight == 0 || inFlight + bytes <= this.bytes

  /** Return when there may be room without an event before. */
  def wakeAt(now: Long): Option[Long] = None

  /** Note that the bound delays data that could be sent. */
  def markLimited(): Unit

  def send(bytes: Int, now: Long): Flight = {
    inFlightBytes += bytes
    count += 1
    lastSendTime = now
    new Flight(now, bytes, count)
  }

  /** Bytes that arrive per nanosecond; 0 if unknown. */
  def rate: Double = 0

  /**
   * Record an arrival.
   *
   * @param floorBytes bytes that the window must admit
   * @param delayNanos queueing delay of the report of the arrival, in nanoseconds
   */
  def recordArrival(flight: Flight, floorBytes: Long, now: Long, delayNanos: Long): Unit =
    forget(flight)

  /** Remove bytes that will not arrive, or are no longer waited for. */
  def forget(flight: Flight): Unit = inFlightBytes -= flight.bytes

  /** Time of the last send. */
  protected def lastSend: Long = lastSendTime

  /** Return true if nothing was sent after `flight`. */
  protected def isLast(flight: Flight): Boolean = flight.number == count
}

private[flow] object Window {

  /**
   * Initial bytes of the window. They are a tenth of a second at 20 Mbit/s. On loopback the window
   * doubles four times within a millisecond.
   */
  val StartBytes: Long = 256 << 10

  /**
   * Nanoseconds of delay that do not show a queue: threads and garbage collectors sometimes take
   * that long.
   */
  val SlackNanos: Double = 2e6
}
