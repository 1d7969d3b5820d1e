package sparkdl.comm.flow

import scala.collection.mutable

/** What is wanted of one sender and what is on its way from there. */
private[flow] final class SenderQueue(val window: Window, order: Ordering[WantedBlock]) {

  /** Those of which something is still to be asked for, the first one first. */
  val waiting: mutable.TreeSet[WantedBlock] = mutable.TreeSet.empty(order)

  /** In the order in which they were asked for. */
  val asked: mutable.LinkedHashSet[Request] = mutable.LinkedHashSet.empty

  private var lastArrival = Long.MinValue
  private var lastLatency = 0L
  private var stopped = false

  /** It has sent nothing for so long that it gets nothing to do. */
  def isStalled: Boolean = stopped

  /** When that will be, if nothing comes before; never if nothing is on its way. */
  def stallsAt: Option[Long] =
    if (stopped) None
    else asked.headOption.map { oldest =>
      math.max(oldest.ofSender.asked, lastArrival) + SenderQueue.Patience + 4 * lastLatency
    }

  def stalled(): Unit = stopped = true

  def arrived(request: Request, chunk: Int, now: Long): Unit = {
    asked -= request
    window.arrived(request.ofSender, chunk, 0, now)
    lastArrival = now
    lastLatency = now - request.ofSender.asked
    stopped = false
  }

  /** Something of it is on its way, or wanted. */
  def isBusy: Boolean = !stopped && (asked.nonEmpty || waiting.nonEmpty)

  def gone(request: Request): Unit = {
    asked -= request
    window.gone(request.ofSender)
    if (asked.isEmpty) stopped = false // nothing would come that tells
  }
}

private[flow] object SenderQueue {

  /**
   * Nanoseconds without a byte, beside what chunks of it take, after which a sender is taken for one that stands
   * still.
   */
  val Patience: Long = 500L * 1000 * 1000
}

/** A block until all of it is here. */
private[flow] final class WantedBlock(val block: Wanted, val number: Long) {
  private var next = 0L
  private var here = 0L

  /** Those of its chunks that are on their way. */
  val asked: mutable.Set[Request] = mutable.Set.empty

  def isAsked: Boolean = next == block.bytes

  def isHere: Boolean = here == block.bytes

  /** Bytes to ask for next. A rest of less than half a chunk goes with the last one. */
  def size(chunk: Int): Int = {
    val rest = block.bytes - next
    if (rest < chunk + chunk / 2) rest.toInt else chunk
  }

  def take(chunk: Int): Request = {
    val request = new Request(block, next, size(chunk))
    next += request.bytes
    asked += request
    request
  }

  def arrived(request: Request): Unit = {
    asked -= request
    here += request.bytes
  }
}
