package sparkdl.comm.flow

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

/** Messages of many sizes that executors send each other, each in its turn. */
class UplinkSpec extends AnyFunSuite {
  private val Milli = 1000L * 1000
  private val Packet = 1500
  private val Confirmation = 100

  /**
   * Cables between executors and a switch, which packets pass in the order in which they come. Those that confirm messages
   * queue with all others.
   *
   * @param rate bytes per second of every cable
   */
  private final class Star(val rate: Double, val roundTrip: Long, executors: Int) {
    val simulation = new Simulation
    private val schedulers = IndexedSeq.fill(executors)(TransferScheduler.ofUplink())
    private val uplinks = IndexedSeq.fill(executors)(new Link(simulation, rate, roundTrip / 2))
    private val downlinks = IndexedSeq.fill(executors)(new Link(simulation, rate, 0))
    private val whenAllCame = mutable.Map.empty[Wanted, () => Unit]
    private val missing = mutable.Map.empty[Wanted, Int]
    private val wakes = Array.fill(executors)(-1L)
    private var received = 0L

    def send(from: Int, to: Int, bytes: Int, urgency: Urgency)(came: => Unit): Unit = {
      val turn = Math.floorMod(to - from, executors)
      val message = new Wanted("message", to.toString, bytes.toLong, urgency, turn)
      whenAllCame(message) = () => came
      missing(message) = bytes
      schedulers(from).want(message)
      pump(from)
    }

    private def pump(from: Int): Unit = {
      val scheduler = schedulers(from)
      scheduler.next(simulation.now).foreach(carryOut(from, _))
      scheduler.wakeAt(simulation.now).filter(_ != wakes(from)).foreach { at =>
        wakes(from) = at
        simulation.after(at - simulation.now)(pump(from))
      }
    }

    private def carryOut(from: Int, request: Request): Unit = {
      val to = request.block.peer.toInt
      val packets = (request.bytes + Packet - 1) / Packet
      (1 to packets).foreach { packet =>
        val size = if (packet < packets) Packet else request.bytes - (packets - 1) * Packet
        pass(from, to, size) {
          received += size
          if (packet == packets) {
            val there = simulation.now
            pass(to, from, Confirmation) {
              schedulers(from).arrived(request, simulation.now, Some(there - to))
              pump(from)
            }
            arrived(request)
          }
        }
      }
    }

    private def pass(from: Int, to: Int, bytes: Int)(there: => Unit): Unit =
      uplinks(from).send((), bytes)(downlinks(to).send((), bytes)(there))

    private def arrived(request: Request): Unit = {
      val message = request.block
      missing(message) -= request.bytes
      if (missing(message) == 0) {
        missing -= message
        whenAllCame.remove(message).get()
      }
    }

    /** The part of the links' rate that executors get in so many seconds. */
    def used(seconds: Double, receivers: Int): Double = {
      val (before, begin) = (received, simulation.now)
      simulation.run(begin + (seconds * 1e9).toLong)
      (received - before) / (seconds * rate * receivers)
    }
  }

  private val Links = for {
    mbits <- Seq(10, 27, 200, 1000)
    roundTrip <- Seq(200000L, 20 * Milli)
  } yield (mbits, roundTrip)

  test("of whatever link of one sender, most is used, and what is urgent waits for little") {
    val largest = 60000
    for ((mbits, roundTrip) <- Links; peers <- Seq(1, 7)) {
      val star = new Star(mbits * 1e6 / 8, roundTrip, peers + 1)
      val random = new Random(1)
      var number = 0
      def another(to: Int): Unit = {
        number += 1
        star.send(0, to, 100 + random.nextInt(largest), Urgency(1, number))(another(to))
      }
      for (to <- 1 to peers; _ <- 1 to 200) another(to)
      star.used(3, receivers = 1)
      val used = star.used(4, receivers = 1)
      val begun = star.simulation.now
      var took = 0L
      star.send(0, 1, 1000, Urgency(0, 0)) { took = star.simulation.now - begun }
      star.used(2, receivers = 1)
      withClue(s"$mbits Mbit/s, $roundTrip ns, $peers peers: ") {
        assert(used > 0.93)
        assert(took < roundTrip + 10 * Milli + 2.5 * largest / star.rate * 1e9)
      }
    }
  }

  test("where all send to all, a bucket after the other and none far ahead, most of the links is used") {
    val (executors, ahead) = (8, 30)
    for ((mbits, roundTrip) <- Links if mbits < 1000; mean <- Seq(3000, 13000, 40000)) {
      val star = new Star(mbits * 1e6 / 8, roundTrip, executors)
      val random = new Random(1)
      val missing = mutable.ArrayBuffer.empty[Int]
      var complete = 0
      def offer(): Unit = {
        val bucket = missing.size
        val bytes = (mean * (0.4 + 1.2 * random.nextDouble())).toInt
        missing += executors * (executors - 1)
        for (from <- 0 until executors)
          star.simulation.after((random.nextDouble() * 2 * Milli).toLong) {
            for (to <- 0 until executors if to != from)
              star.send(from, to, bytes, Urgency(1, bucket)) {
                missing(bucket) -= 1
                while (complete < missing.size && missing(complete) == 0) complete += 1
                while (missing.size < complete + ahead) offer()
              }
          }
      }
      (1 to ahead).foreach(_ => offer())
      star.used(2, executors)
      val used = star.used(2, executors)
      withClue(s"$mbits Mbit/s, $roundTrip ns, messages of $mean bytes: ")(assert(used > 0.88))
    }
  }
}
