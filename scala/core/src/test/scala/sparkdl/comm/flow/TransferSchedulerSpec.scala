package sparkdl.comm.flow

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

/** What the scheduler asks for, whatever its windows are: here they change at random. */
class TransferSchedulerSpec extends AnyFunSuite {
  private val Mebi = 1L << 20

  private def block(sender: String, bytes: Long, kind: Int = 0, order: Int = 0, turn: Int = 0): Wanted =
    new Wanted("block", sender, bytes, Urgency(kind, order), turn)

  private final class DrawnWindow(random: Random, most: Long) extends Window {
    private var now = draw()
    private def draw(): Long = 1 + (random.nextDouble() * random.nextDouble() * most).toLong
    override def bytes: Long = now
    override def held(): Unit = ()
    override def arrived(flight: Flight, floor: Long, at: Long, late: Long): Unit = {
      gone(flight)
      now = draw()
    }
  }

  /** What is known of a wanted block from the requests alone. */
  private final class Known(val block: Wanted) {
    var asked: Vector[Request] = Vector.empty
    var here: Vector[Request] = Vector.empty

    private def covered: Seq[(Long, Int)] = (asked ++ here).map(r => (r.offset, r.bytes))
    def unasked: Long = block.bytes - covered.map(_._2.toLong).sum
    def size(chunk: Int): Int = if (unasked < chunk + chunk / 2) unasked.toInt else chunk

    def ask(request: Request): Unit = {
      assert(request.offset >= 0 && request.offset + request.bytes <= block.bytes)
      covered.foreach { case (offset, bytes) =>
        assert(offset + bytes <= request.offset || request.offset + request.bytes <= offset, "asked twice")
      }
      asked :+= request
    }
  }

  /** Drives a scheduler and checks what it does against what is known. */
  private final class Checked(random: Random, senders: IndexedSeq[String]) {
    private val windows = mutable.ArrayBuffer.empty[DrawnWindow] // the first one is of all senders
    private val scheduler = new TransferScheduler(() => {
      windows += new DrawnWindow(random, if (windows.isEmpty) 4 * Mebi else 2 * Mebi)
      windows.last
    })
    private val windowOf = mutable.Map.empty[String, DrawnWindow]
    private val known = mutable.LinkedHashMap.empty[Wanted, Known]
    private var asked = 0
    private var now = 0L
    var completed = 0

    def inFlight: IndexedSeq[Request] = known.values.flatMap(_.asked).toIndexedSeq
    def isEmpty: Boolean = known.isEmpty
    private def flying(sender: String): Long = inFlight.filter(_.block.peer == sender).map(_.bytes.toLong).sum
    private def flying: Long = inFlight.map(_.bytes.toLong).sum

    def want(): Unit = {
      val turn = random.nextInt(senders.size)
      val bytes = 1 + (random.nextDouble() * random.nextDouble() * 2 * Mebi).toLong
      val wanted = block(senders(turn), bytes, random.nextInt(2), random.nextInt(4), turn)
      val before = windows.size
      scheduler.want(wanted)
      known(wanted) = new Known(wanted)
      if (windows.size > before) windowOf(wanted.peer) = windows.last
    }

    def arrive(): Unit = drawn(inFlight).foreach { request =>
      val block = known(request.block)
      block.asked = block.asked.filterNot(_ == request)
      block.here :+= request
      val whole = block.here.map(_.bytes.toLong).sum == request.block.bytes
      assert(scheduler.arrived(request, now) === whole)
      assert(!scheduler.arrived(request, now), "twice is as once")
      if (whole) {
        known -= request.block
        completed += 1
      }
    }

    def cancel(): Unit = drawn(known.values.toIndexedSeq).foreach { cancelled =>
      scheduler.cancel(cancelled.block)
      known -= cancelled.block
      assert(scheduler.inFlight === flying, "a cancel gives the window back")
      cancelled.asked.foreach(request => assert(!scheduler.arrived(request, now)))
    }

    def ask(): Unit = {
      now += random.nextInt(1000000)
      known.keys.map(scheduler.chunk).foreach(chunk => assert(chunk >= (16 << 10) && chunk <= (64 << 10)))
      scheduler.next(now).foreach { request =>
        if (asked % TransferScheduler.Share != TransferScheduler.Share - 1) assertFirst(request.block)
        asked += 1
        assertFits(windowOf(request.block.peer), flying(request.block.peer), request.bytes)
        assertFits(windows.head, flying, request.bytes)
        known(request.block).ask(request)
      }
      assert(scheduler.inFlight === flying)
      val largest = known.values.map(size).foldLeft(0)(_ max _)
      assert(possible.isEmpty || flying > 0 && flying + largest > windows.head.bytes, "idle")
    }

    private def size(known: Known): Int = known.size(scheduler.chunk(known.block))

    private def assertFits(window: Window, before: Long, bytes: Int): Unit =
      assert(before == 0 || before + bytes <= window.bytes, "the bound")

    /**
     * The first block of each sender that has room: that keeps its others back, even if one of them is small enough.
     */
    private def possible: Seq[Known] = {
      def rank(block: Wanted) = (block.urgency.phase, block.urgency.order, block.turn)
      val bySender = known.values.filter(_.unasked > 0).groupBy(_.block.peer)
      val firsts = bySender.map(_._2.minBy(known => rank(known.block)))
      firsts.toSeq.filter { first =>
        val before = flying(first.block.peer)
        before == 0 || before + size(first) <= windowOf(first.block.peer).bytes
      }
    }

    private def assertFirst(chosen: Wanted): Unit = {
      def rank(block: Wanted) = (block.urgency.phase, block.urgency.order, flying(block.peer), block.turn)
      assert(possible.map(known => rank(known.block)).min === rank(chosen), "urgency")
    }

    private def drawn[T](from: IndexedSeq[T]): Option[T] =
      if (from.isEmpty) None else Some(from(random.nextInt(from.size)))
  }

  test("the bound is kept, urgency too, every byte is asked for once, and nothing idles while there is room") {
    (1 to 300).foreach { seed =>
      withClue(s"seed $seed: ") {
        val random = new Random(seed)
        val checked = new Checked(random, (0 to random.nextInt(5)).map(number => s"executor$number"))
        (1 to 150).foreach { _ =>
          random.nextInt(9) match {
            case 0 | 1 | 2 => checked.want()
            case 3 => if (random.nextInt(4) == 0) checked.cancel()
            case _ => checked.arrive()
          }
          checked.ask()
        }
        while (!checked.isEmpty) {
          assert(checked.inFlight.nonEmpty, "nothing is on its way, and something is wanted")
          checked.arrive()
          checked.ask()
        }
        assert(checked.completed > 0)
      }
    }
  }

  /** What a scheduler asks for, one chunk after the other. */
  private def served(scheduler: TransferScheduler, chunks: Int): Seq[Wanted] = {
    val order = mutable.ArrayBuffer.empty[Wanted]
    while (order.size < chunks) {
      val requests = scheduler.next(0)
      assert(requests.nonEmpty)
      order ++= requests.map(_.block)
      requests.foreach(scheduler.arrived(_, 0))
    }
    order.toSeq
  }

  private def oneByOne: TransferScheduler = new TransferScheduler(() => new FixedWindow(1))

  test("an urgent block overtakes a large one that is half here") {
    val scheduler = oneByOne
    val large = block("one", Mebi, 1)
    scheduler.want(large)
    assert(served(scheduler, 8) === Seq.fill(8)(large))
    val urgent = block("one", 64 << 10, 0, order = 9)
    scheduler.want(urgent)
    assert(served(scheduler, 10) === Seq.fill(2)(urgent) ++ Seq.fill(8)(large))
  }

  test("a large block goes in larger chunks, as nothing waits for one of them for long beside the block") {
    val scheduler = oneByOne
    scheduler.want(block("one", 16 * Mebi))
    assert(scheduler.next(0).map(_.bytes) === Seq(64 << 10))
    assert(Seq(16 << 10, 600 << 10).map(bytes => scheduler.chunk(block("one", bytes.toLong))) === Seq(
      32 << 10,
      32 << 10
    ))
  }

  test("senders are asked in their turn, and each for as much") {
    val scheduler = new TransferScheduler(() => new FixedWindow(128 << 10))
    val blocks = Seq(2, 0, 3, 1).map(turn => block(s"executor$turn", Mebi / 2, turn = turn))
    blocks.foreach(scheduler.want)
    assert(scheduler.next(0).map(_.block.turn) === Seq(0, 1, 2, 3))
  }

  test("a sender that answers sooner is asked for more, and a slow one keeps what it has") {
    val scheduler = new TransferScheduler(() => new FixedWindow(64 << 10))
    Seq("slow", "fast").foreach(name => scheduler.want(block(name, Mebi / 2)))
    var fast = scheduler.next(0).find(_.block.peer == "fast").get
    (1 to 10).foreach { at =>
      scheduler.arrived(fast, at.toLong)
      val next = scheduler.next(at.toLong)
      assert(next.map(_.block.peer) === Seq("fast"))
      fast = next.head
    }
  }

  test("what waits longest comes in the end, whatever else is wanted") {
    val scheduler = oneByOne
    val patient = block("one", Mebi, 1)
    scheduler.want(patient)
    scheduler.want(block("one", 1000 * Mebi))
    assert(served(scheduler, 16 * TransferScheduler.Share).count(_ == patient) === 16)
  }

  test("a sender that stands still keeps nobody else from the window, until it sends again") {
    val scheduler = new TransferScheduler(() => new FixedWindow(64 << 10))
    scheduler.want(block("stopped", Mebi / 2))
    val lost = scheduler.next(0)
    assert(lost.size === 2)
    scheduler.want(block("other", Mebi / 2, 1))
    assert(scheduler.next(1) === Nil)
    val stalls = scheduler.wakeAt(0).get
    assert(scheduler.next(stalls - 1) === Nil)
    val others = scheduler.next(stalls)
    assert(others.map(_.block.peer) === Seq("other", "other"))
    scheduler.arrived(others.head, stalls)
    assert(scheduler.next(stalls).map(_.block.peer) === Seq("other"))
    assert(scheduler.inFlight === (64 << 10))
    scheduler.arrived(lost.head, stalls)
    assert(scheduler.inFlight === (64 << 10), "it was given back before")
    scheduler.arrived(others.last, stalls)
    assert(scheduler.next(stalls).map(_.block.peer) === Seq("stopped"))
  }

  test("a sender that stands still is asked again when what it owed was cancelled") {
    val scheduler = oneByOne
    val stopped = block("stopped", Mebi)
    scheduler.want(stopped)
    scheduler.next(0)
    val stalls = scheduler.wakeAt(0).get
    scheduler.next(stalls)
    assert(scheduler.inFlight === 0 && scheduler.wakeAt(stalls).isEmpty)
    scheduler.cancel(stopped)
    scheduler.want(block("stopped", Mebi))
    assert(scheduler.next(stalls).map(_.offset) === Seq(0))
  }

  test("a sender that had nothing to do for long is forgotten once there is another one, and no other sender is") {
    var windows = Vector.empty[FixedWindow]
    val scheduler = new TransferScheduler(() => {
      windows :+= new FixedWindow(Mebi)
      windows.last
    })
    def transfer(sender: String, at: Long): Unit = {
      scheduler.want(block(sender, 1000))
      scheduler.next(at).filter(_.block.peer == sender).foreach(scheduler.arrived(_, at))
    }
    Seq("idle", "lately").foreach(transfer(_, 0))
    scheduler.want(block("slow", 1000))
    scheduler.next(0)
    assert(windows.size === 4, "one of all senders, and one of each")
    transfer("lately", TransferScheduler.Idle)
    transfer("lately", TransferScheduler.Idle + 1)
    transfer("idle", TransferScheduler.Idle + 1)
    assert(windows.size === 4, "there is no other one")
    transfer("lately", 2 * TransferScheduler.Idle)
    transfer("lately", 2 * TransferScheduler.Idle + 2)
    transfer("new", 2 * TransferScheduler.Idle + 2)
    Seq("lately", "slow").foreach(transfer(_, 2 * TransferScheduler.Idle + 2))
    assert(windows.size === 5)
    transfer("idle", 2 * TransferScheduler.Idle + 2)
    assert(windows.size === 6)
  }

  test("what makes no sense is refused") {
    val scheduler = new TransferScheduler
    val wanted = block("one", 1)
    scheduler.want(wanted)
    assert(intercept[IllegalArgumentException](scheduler.want(wanted)).getMessage.contains("is wanted already"))
    assert(intercept[IllegalArgumentException](block("one", 0)).getMessage.contains("has 0 bytes: it needs at least 1"))
  }
}
