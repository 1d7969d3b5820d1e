package sparkdl.comm.flow

/**
 * Bytes on their way.
 *
 * @param sent when, in nanoseconds
 * @param number of those that were sent in this window, the last one is the largest
 */
private[flow] final class Flight(val sent: Long, val bytes: Int, val number: Long)

/** Bounds the bytes that are on their way. Times are nanoseconds of one clock. */
private[flow] abstract class Window {
  private var flying = 0L
  private var count = 0L
  private var last = Long.MinValue

  /** The bound. It may become less than what is in flight: then nothing more is sent. */
  def bytes: Long

  def inFlight: Long = flying

  /** Whether so many bytes more may be sent. If nothing is in flight, any number may. */
  def hasRoom(bytes: Int, now: Long): Boolean = inFlight == 0 || inFlight + bytes <= this.bytes

  /** When there may be room even if nothing happens before. */
  def wakeAt(now: Long): Option[Long] = None

  /** More is to be sent than there is room for. */
  def held(): Unit

  def send(bytes: Int, now: Long): Flight = {
    flying += bytes
    count += 1
    last = now
    new Flight(now, bytes, count)
  }

  /** Bytes that come in a nanosecond; 0 if that is not known. */
  def rate: Double = 0

  /**
   * @param floor bytes that are to be let through
   * @param late nanoseconds since they were there, beside those that it takes at best to hear of it
   */
  def arrived(flight: Flight, floor: Long, now: Long, late: Long): Unit = gone(flight)

  /** They will not come, or are no longer waited for. */
  def gone(flight: Flight): Unit = flying -= flight.bytes

  /** When something was sent, the last time. */
  protected def lastSend: Long = last

  /** Whether nothing was sent after it. */
  protected def isLast(flight: Flight): Boolean = flight.number == count
}

private[flow] object Window {

  /**
   * Before anything is known: a tenth of a second at 20 Mbit/s, and doubled four times in a millisecond on
   * loopback.
   */
  val Start: Long = 256 << 10

  /**
   * Nanoseconds of queueing that are no sign of a queue: threads and garbage collectors take that long now and
   * then.
   */
  val Slack: Double = 2e6
}
