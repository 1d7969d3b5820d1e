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
  private var flying = 0L
  private var count = 0L
  private var last = Long.MinValue

  /** The bound, in bytes. If it falls below what is in flight, nothing more is sent. */
  def bytes: Long

  def inFlight: Long = flying

  /** Return true if so many more bytes may be sent. If nothing is in flight, any number may. */
  def hasRoom(bytes: Int, now: Long): Boolean = inFlight == 0 || inFlight + bytes <= this.bytes

  /** Return when there may be room without an event before. */
  def wakeAt(now: Long): Option[Long] = None

  /** Note that the bound delays data that could be sent. */
  def held(): Unit

  def send(bytes: Int, now: Long): Flight = {
    flying += bytes
    count += 1
    last = now
    new Flight(now, bytes, count)
  }

  /** Bytes that arrive per nanosecond; 0 if unknown. */
  def rate: Double = 0

  /**
   * Record an arrival.
   *
   * @param floor bytes that the window must admit
   * @param late queueing delay of the report of the arrival, in nanoseconds
   */
  def arrived(flight: Flight, floor: Long, now: Long, late: Long): Unit = gone(flight)

  /** Remove bytes that will not arrive, or are no longer waited for. */
  def gone(flight: Flight): Unit = flying -= flight.bytes

  /** Time of the last send. */
  protected def lastSend: Long = last

  /** Return true if nothing was sent after `flight`. */
  protected def isLast(flight: Flight): Boolean = flight.number == count
}

private[flow] object Window {

  /**
   * Initial bytes of the window. They are a tenth of a second at 20 Mbit/s. On loopback the window doubles four times
   * within a millisecond.
   */
  val Start: Long = 256 << 10

  /** Nanoseconds of delay that do not show a queue: threads and garbage collectors sometimes take that long. */
  val Slack: Double = 2e6
}
