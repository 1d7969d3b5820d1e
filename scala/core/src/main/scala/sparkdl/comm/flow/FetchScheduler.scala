package sparkdl.comm.flow

import scala.collection.mutable

/**
 * Decides what an executor asks other executors for, and when: the receiver schedules, senders answer in the order in
 * which they are asked. Pure: whoever drives it sends the requests, and tells it what came of them. One for each link
 * by which blocks come; not thread-safe.
 *
 * {{{
 * want | arrived | cancel               what has happened
 *   next                                after each: requests to send now
 *   wakeAt                              when to call `next` if nothing happens before
 * }}}
 *
 * Blocks are asked for in chunks. One window bounds the bytes that are asked for and not here, of all senders together,
 * and one more for each sender keeps one that is slow from filling it. Among blocks of senders that have room, the
 * policy says which comes first; what is in flight stays. Equal ones are asked of senders that have least in flight, so
 * that the work goes where it is done. One chunk of [[FetchScheduler.Share]] is of the block that has waited longest,
 * whatever the policy says. A sender that stands still gives its part of the common window back, and is asked for no
 * more until it sends again.
 *
 * Times are nanoseconds of one clock that never goes back.
 *
 * @param newWindow the one for all senders, and one for each
 */
private[comm] final class FetchScheduler private[flow] (policy: Policy, newWindow: () => Window) {
  import FetchScheduler._

  def this(policy: Policy = Policy.Urgent) = this(policy, () => new DelayWindow)

  private val order: Ordering[WantedBlock] = (one, other) => {
    val byPolicy = policy.compare(one.block, other.block)
    if (byPolicy != 0) byPolicy
    else if (one.block.turn != other.block.turn) Integer.compare(one.block.turn, other.block.turn)
    else java.lang.Long.compare(one.number, other.number)
  }

  private val all = newWindow()
  private val senders = mutable.LinkedHashMap.empty[String, SenderQueue]
  private val blocks = mutable.Map.empty[Wanted, WantedBlock]

  /** Those of which something is still to be asked for; the one that was asked for least lately is the first. */
  private val longest = mutable.LinkedHashSet.empty[WantedBlock]
  private var wishes = 0L
  private var chunks = 0L

  /** Bytes that are asked for and not here, without those of senders that stand still. */
  def inFlight: Long = all.inFlight

  /** The bound of [[inFlight]], in bytes. */
  def window: Long = all.bytes

  /**
   * Bytes of a chunk: an eighth of the window, so that what is urgent gets its turn soon, but enough to repay a
   * request.
   */
  def chunk: Int = math.max(smallest, math.min(LargestChunk, wholes(all.bytes / 8))).toInt

  /** A request of that many repays itself. */
  private def smallest: Long =
    if (all.rate == 0) MostOfSmallest
    else math.max(LeastOfSmallest, math.min(MostOfSmallest, wholes((all.rate * RepaysNanos).toLong)))

  private def wholes(bytes: Long): Long = bytes / LeastOfSmallest * LeastOfSmallest

  /** Every sender is to have something to send whenever its turn comes at a sender that others ask as well. */
  private def floor: Long = (1 + senders.values.count(_.isBusy)) * smallest

  /** Wants a block that is to be had from now on. */
  def want(block: Wanted): Unit = {
    require(!blocks.contains(block), s"block $block is wanted already")
    val entry = new WantedBlock(block, wishes)
    wishes += 1
    blocks(block) = entry
    senders.getOrElseUpdate(block.sender, new SenderQueue(newWindow(), order)).waiting += entry
    longest += entry
  }

  /** The requests to send now, in this order. */
  def next(now: Long): Seq[Request] = {
    setStalledAside(now)
    Iterator.continually(choose(now)).takeWhile(_.isDefined).map(entry => ask(entry.get, now)).toList
  }

  /** When [[next]] may have more to ask for even if nothing happens before: later than `now`. */
  def wakeAt(now: Long): Option[Long] = {
    val times = (senders.values.flatMap(_.stallsAt) ++ all.wakeAt(now)).filter(_ > now)
    if (times.isEmpty) None else Some(times.min)
  }

  /**
   * What was asked for is here. If its block was cancelled before, that is no matter.
   *
   * @return whether that was the last of its block
   */
  def arrived(request: Request, now: Long): Boolean =
    blocks.get(request.block).filter(_.asked(request)).exists { entry =>
      entry.arrived(request)
      request.ofAll.foreach(all.arrived(_, chunk, floor, now))
      senders(request.block.sender).arrived(request, chunk, now)
      if (entry.isHere) blocks -= request.block
      entry.isHere
    }

  /** The block is not wanted any more. What is on its way from its sender may still come, but nobody waits for it. */
  def cancel(block: Wanted): Unit = blocks.remove(block).foreach { entry =>
    entry.asked.foreach(giveBack)
    longest -= entry
    senders(block.sender).waiting -= entry
  }

  private def giveBack(request: Request): Unit = {
    request.ofAll.foreach(all.gone)
    senders(request.block.sender).gone(request)
  }

  private def setStalledAside(now: Long): Unit =
    senders.values.filter(_.stallsAt.exists(_ <= now)).foreach { sender =>
      sender.asked.foreach { request =>
        request.ofAll.foreach(all.gone)
        request.ofAll = None
      }
      sender.stalled()
    }

  /** Whether the next chunk is of the block that has waited longest. */
  private def isForLongest: Boolean = chunks % Share == Share - 1

  private def choose(now: Long): Option[WantedBlock] = {
    val found = if (isForLongest) longest.find(hasRoom(_, now)) else first(now)
    found.filter { entry =>
      val fits = all.hasRoom(entry.size(chunk), now)
      if (!fits) all.held()
      fits
    }
  }

  private def hasRoom(entry: WantedBlock, now: Long): Boolean = {
    val sender = senders(entry.block.sender)
    !sender.isStalled && sender.window.hasRoom(entry.size(chunk), now)
  }

  /** By the policy, of the senders that have room. */
  private def first(now: Long): Option[WantedBlock] = {
    var found: Option[WantedBlock] = None
    senders.values.foreach { sender =>
      sender.waiting.headOption.filter(_ => !sender.isStalled).foreach { entry =>
        if (!hasRoom(entry, now)) sender.window.held()
        else if (found.forall(goesBefore(entry, _))) found = Some(entry)
      }
    }
    found
  }

  private def goesBefore(one: WantedBlock, other: WantedBlock): Boolean = {
    val byPolicy = policy.compare(one.block, other.block)
    lazy val byFlight =
      java.lang.Long.compare(senders(one.block.sender).window.inFlight, senders(other.block.sender).window.inFlight)
    if (byPolicy != 0) byPolicy < 0 else if (byFlight != 0) byFlight < 0 else order.lt(one, other)
  }

  private def ask(entry: WantedBlock, now: Long): Request = {
    val sender = senders(entry.block.sender)
    val request = entry.take(chunk)
    request.ofSender = sender.window.ask(request.bytes, now)
    request.ofAll = Some(all.ask(request.bytes, now))
    sender.asked += request
    longest -= entry
    if (entry.isAsked) sender.waiting -= entry else longest += entry // behind the others
    chunks += 1
    request
  }
}

private[comm] object FetchScheduler {

  /** A request costs tens of microseconds on both sides. */
  val RepaysNanos: Double = 2e6

  /** Bounds of the bytes that take as long, and a multiple of the first one: half a millisecond at 1 Gbit/s is the other. */
  val LeastOfSmallest: Long = 16 << 10
  val MostOfSmallest: Long = 64 << 10

  /** A tenth of a millisecond where memory is the link, which repays a request there. */
  val LargestChunk: Long = 256 << 10

  /** So few chunks go to who has waited longest that nobody else notices it. */
  val Share = 64
}
