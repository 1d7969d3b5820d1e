// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Seeds

/** Tests of the scheduler's requests, also with windows that change at random. */
class TransferSchedulerSpec extends AnyFunSuite {
  private val Mebi = 1L << 20

  private def block(
      sender: String,
      bytes: Long,
      kind: Int = 0,
      order: Int = 0,
      turn: Int = 0
  ): SendRequest =
    new SendRequest("block", sender, bytes, Urgency(kind, order), turn)

  private final class DrawnWindow(random: Random, most: Long) extends Window {
    private var now = draw()
    private def draw(): Long = 1 + (random.nextDouble() * random.nextDouble() * most).toLong
    override def bytes: Long = now
    override def markLimited(): Unit = ()
    override def recordArrival(
        flight: Flight,
        floorBytes: Long,
        at: Long,
        delayNanos: Long
    ): Unit = {
      forget(flight)
      now = draw()
    }
  }

  /** Progress of a block, from the requests alone. */
  private final class BlockProgress(val block: SendRequest) {
    var inFlight: Vector[ChunkRequest] = Vector.empty
    var arrived: Vector[ChunkRequest] = Vector.empty

    private def covered: Seq[(Long, Int)] = (inFlight ++ arrived).map(r => (r.offset, r.bytes))
    def unrequestedBytes: Long = block.bytes - covered.map(_._2.toLong).sum
    def size(chunk: Int): Int =
      if (unrequestedBytes < chunk + chunk / 2) unrequestedBytes.toInt else chunk

    def ask(request: ChunkRequest): Unit = {
      assert(request.offset >= 0 && request.offset + request.bytes <= block.bytes)
      covered.foreach { case (offset, bytes) =>
        assert(
          offset + bytes <= request.offset || request.offset + request.bytes <= offset,
          "asked twice"
        )
      }
      inFlight :+= request
    }
  }

  /** Driver of a scheduler that checks its requests. */
  private final class CheckedScheduler(random: Random, senders: IndexedSeq[String]) {
    // the first one is common to all peers
    private val windows = mutable.ArrayBuffer.empty[DrawnWindow]
    private val scheduler = new TransferScheduler(() => {
      windows += new DrawnWindow(random, if (windows.isEmpty) 4 * Mebi else 2 * Mebi)
      windows.last
    })
    private val windowOf = mutable.Map.empty[String, DrawnWindow]
    private val known = mutable.LinkedHashMap.empty[SendRequest, BlockProgress]
    private var requestCount = 0
    private var now = 0L
    var completed = 0

    def inFlight: IndexedSeq[ChunkRequest] = known.values.flatMap(_.inFlight).toIndexedSeq
    def isEmpty: Boolean = known.isEmpty
    private def inFlightBytes(sender: String): Long =
      inFlight.filter(_.block.peer == sender).map(_.bytes.toLong).sum
    private def inFlightBytes: Long = inFlight.map(_.bytes.toLong).sum

    def add(): Unit = {
      val turn = random.nextInt(senders.size)
      val bytes = 1 + (random.nextDouble() * random.nextDouble() * 2 * Mebi).toLong
      val wanted = block(senders(turn), bytes, random.nextInt(2), random.nextInt(4), turn)
      val before = windows.size
      scheduler.add(wanted)
      known(wanted) = new BlockProgress(wanted)
      if (windows.size > before) windowOf(wanted.peer) = windows.last
    }

    def arrive(): Unit = drawn(inFlight).foreach { request =>
      val block = known(request.block)
      block.inFlight = block.inFlight.filterNot(_ == request)
      block.arrived :+= request
      val whole = block.arrived.map(_.bytes.toLong).sum == request.block.bytes
      assert(scheduler.recordArrival(request, now) === whole)
      assert(!scheduler.recordArrival(request, now), "a second call does nothing")
      if (whole) {
        known -= request.block
        completed += 1
      }
    }

    def cancel(): Unit = drawn(known.values.toIndexedSeq).foreach { cancelled =>
      scheduler.cancel(cancelled.block)
      known -= cancelled.block
      assert(scheduler.inFlight === inFlightBytes, "a cancel must free the window")
      cancelled.inFlight.foreach(request => assert(!scheduler.recordArrival(request, now)))
    }

    def ask(): Unit = {
      now += random.nextInt(1000000)
      known.keys.map(scheduler.chunkBytes).foreach(chunk =>
        assert(chunk >= (16 << 10) && chunk <= (64 << 10))
      )
      scheduler.next(now).foreach { request =>
        if (
          requestCount % TransferScheduler.FairnessInterval != TransferScheduler.FairnessInterval - 1
        )
          assertFirst(request.block)
        requestCount += 1
        assertFits(windowOf(request.block.peer), inFlightBytes(request.block.peer), request.bytes)
        assertFits(windows.head, inFlightBytes, request.bytes)
        known(request.block).ask(request)
      }
      assert(scheduler.inFlight === inFlightBytes)
      val largest = known.values.map(size).foldLeft(0)(_ max _)
      assert(
        possible.isEmpty || inFlightBytes > 0 && inFlightBytes + largest > windows.head.bytes,
        "idle"
      )
    }

    private def size(known: BlockProgress): Int = known.size(scheduler.chunkBytes(known.block))

    private def assertFits(window: Window, before: Long, bytes: Int): Unit =
      assert(before == 0 || before + bytes <= window.bytes, "the bound")

    /**
     * Return the first block of each peer that has room. It holds back the peer's other blocks,
     * also small ones.
     */
    private def possible: Seq[BlockProgress] = {
      def rank(block: SendRequest) = (block.urgency.phase, block.urgency.order, block.turn)
      val bySender = known.values.filter(_.unrequestedBytes > 0).groupBy(_.block.peer)
      val firsts = bySender.map(_._2.minBy(known => rank(known.block)))
      firsts.toSeq.filter { first =>
        val before = inFlightBytes(first.block.peer)
        before == 0 || before + size(first) <= windowOf(first.block.peer).bytes
      }
    }

    private def assertFirst(chosen: SendRequest): Unit = {
      def rank(block: SendRequest) =
        (block.urgency.phase, block.urgency.order, inFlightBytes(block.peer), block.turn)
      assert(possible.map(known => rank(known.block)).min === rank(chosen), "urgency")
    }

    private def drawn[T](from: IndexedSeq[T]): Option[T] =
      if (from.isEmpty) None else Some(from(random.nextInt(from.size)))
  }

  test(
    "the window and priorities are kept, every byte is requested once, and no room is left unused"
  ) {
    Seeds.seeds(few = 20, many = 300).foreach { seed =>
      withClue(s"seed $seed: ") {
        val random = new Random(seed)
        val checked =
          new CheckedScheduler(random, (0 to random.nextInt(5)).map(number => s"executor$number"))
        (1 to 150).foreach { _ =>
          random.nextInt(9) match {
            case 0 | 1 | 2 => checked.add()
            case 3 => if (random.nextInt(4) == 0) checked.cancel()
            case _ => checked.arrive()
          }
          checked.ask()
        }
        while (!checked.isEmpty) {
          assert(checked.inFlight.nonEmpty, "blocks wait, but nothing is in flight")
          checked.arrive()
          checked.ask()
        }
        assert(checked.completed > 0)
      }
    }
  }

  /** Return the blocks of a scheduler's next chunks. */
  private def served(scheduler: TransferScheduler, chunks: Int): Seq[SendRequest] = {
    val order = mutable.ArrayBuffer.empty[SendRequest]
    while (order.size < chunks) {
      val requests = scheduler.next(0)
      assert(requests.nonEmpty)
      order ++= requests.map(_.block)
      requests.foreach(scheduler.recordArrival(_, 0))
    }
    order.toSeq
  }

  private def oneByOne: TransferScheduler = new TransferScheduler(() => new FixedWindow(1))

  test("an urgent block overtakes a large one that is half sent") {
    val scheduler = oneByOne
    val large = block("one", Mebi, 1)
    scheduler.add(large)
    assert(served(scheduler, 8) === Seq.fill(8)(large))
    val urgent = block("one", 64 << 10, 0, order = 9)
    scheduler.add(urgent)
    assert(served(scheduler, 10) === Seq.fill(2)(urgent) ++ Seq.fill(8)(large))
  }

  test("a large block has larger chunks, as others wait for the block anyway") {
    val scheduler = oneByOne
    scheduler.add(block("one", 16 * Mebi))
    assert(scheduler.next(0).map(_.bytes) === Seq(64 << 10))
    assert(Seq(16 << 10, 600 << 10).map(bytes =>
      scheduler.chunkBytes(block("one", bytes.toLong))
    ) === Seq(
      32 << 10,
      32 << 10
    ))
  }

  test("peers are served in turn, with as many bytes each") {
    val scheduler = new TransferScheduler(() => new FixedWindow(128 << 10))
    val blocks = Seq(2, 0, 3, 1).map(turn => block(s"executor$turn", Mebi / 2, turn = turn))
    blocks.foreach(scheduler.add)
    assert(scheduler.next(0).map(_.block.turn) === Seq(0, 1, 2, 3))
  }

  test("a faster peer gets more, and a slow one keeps its requests") {
    val scheduler = new TransferScheduler(() => new FixedWindow(64 << 10))
    Seq("slow", "fast").foreach(name => scheduler.add(block(name, Mebi / 2)))
    var fast = scheduler.next(0).find(_.block.peer == "fast").get
    (1 to 10).foreach { at =>
      scheduler.recordArrival(fast, at.toLong)
      val next = scheduler.next(at.toLong)
      assert(next.map(_.block.peer) === Seq("fast"))
      fast = next.head
    }
  }

  test("the block that has waited longest is served in the end") {
    val scheduler = oneByOne
    val patient = block("one", Mebi, 1)
    scheduler.add(patient)
    scheduler.add(block("one", 1000 * Mebi))
    assert(served(scheduler, 16 * TransferScheduler.FairnessInterval).count(_ == patient) === 16)
  }

  test("a stalled peer gives up the window until something arrives again") {
    val scheduler = new TransferScheduler(() => new FixedWindow(64 << 10))
    scheduler.add(block("stopped", Mebi / 2))
    val lost = scheduler.next(0)
    assert(lost.size === 2)
    scheduler.add(block("other", Mebi / 2, 1))
    assert(scheduler.next(1) === Nil)
    val stalls = scheduler.wakeAt(0).get
    assert(scheduler.next(stalls - 1) === Nil)
    val others = scheduler.next(stalls)
    assert(others.map(_.block.peer) === Seq("other", "other"))
    scheduler.recordArrival(others.head, stalls)
    assert(scheduler.next(stalls).map(_.block.peer) === Seq("other"))
    assert(scheduler.inFlight === (64 << 10))
    scheduler.recordArrival(lost.head, stalls)
    assert(scheduler.inFlight === (64 << 10), "this part of the window was freed before")
    scheduler.recordArrival(others.last, stalls)
    assert(scheduler.next(stalls).map(_.block.peer) === Seq("stopped"))
  }

  test("a stalled peer is served again when its requests were cancelled") {
    val scheduler = oneByOne
    val stopped = block("stopped", Mebi)
    scheduler.add(stopped)
    scheduler.next(0)
    val stalls = scheduler.wakeAt(0).get
    scheduler.next(stalls)
    assert(scheduler.inFlight === 0 && scheduler.wakeAt(stalls).isEmpty)
    scheduler.cancel(stopped)
    scheduler.add(block("stopped", Mebi))
    assert(scheduler.next(stalls).map(_.offset) === Seq(0))
  }

  test("an idle peer is forgotten when a new one appears, and no other peer is") {
    var windows = Vector.empty[FixedWindow]
    val scheduler = new TransferScheduler(() => {
      windows :+= new FixedWindow(Mebi)
      windows.last
    })
    def transfer(sender: String, at: Long): Unit = {
      scheduler.add(block(sender, 1000))
      scheduler.next(at).filter(_.block.peer == sender).foreach(scheduler.recordArrival(_, at))
    }
    Seq("idle", "lately").foreach(transfer(_, 0))
    scheduler.add(block("slow", 1000))
    scheduler.next(0)
    assert(windows.size === 4, "one common window, and one for each peer")
    transfer("lately", TransferScheduler.IdleNanos)
    transfer("lately", TransferScheduler.IdleNanos + 1)
    transfer("idle", TransferScheduler.IdleNanos + 1)
    assert(windows.size === 4, "there is no new peer")
    transfer("lately", 2 * TransferScheduler.IdleNanos)
    transfer("lately", 2 * TransferScheduler.IdleNanos + 2)
    transfer("new", 2 * TransferScheduler.IdleNanos + 2)
    Seq("lately", "slow").foreach(transfer(_, 2 * TransferScheduler.IdleNanos + 2))
    assert(windows.size === 5)
    transfer("idle", 2 * TransferScheduler.IdleNanos + 2)
    assert(windows.size === 6)
  }

  test("invalid arguments are refused") {
    val scheduler = new TransferScheduler
    val wanted = block("one", 1)
    scheduler.add(wanted)
    assert(intercept[IllegalArgumentException](scheduler.add(wanted)).getMessage.contains(
      "was added already"
    ))
    assert(intercept[IllegalArgumentException](block("one", 0)).getMessage.contains(
      "has 0 bytes: it needs at least 1"
    ))
  }
}
