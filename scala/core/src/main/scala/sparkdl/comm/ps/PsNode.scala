package sparkdl.comm.ps

import java.util.concurrent.{ConcurrentHashMap, ExecutorService, Executors, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.codahale.metrics.{Gauge, MetricRegistry}

import sparkdl.comm.{CommConf, CommException}
import sparkdl.comm.transport.{Blocks, ControlPeer, ControlPlane, ControlReceiver, SlowStart, Transport}

/** What one executor has for all ranks on it: the way to be called, the blocks, the sessions and their metrics. */
final class PsNode(transport: Transport, conf: CommConf, registry: MetricRegistry) extends ControlReceiver {
  private val sessions = new ConcurrentHashMap[(Long, Int), PsSession]

  val blocks: Blocks = SlowStart.wrap(transport.blocks)
  val metrics = new PsMetrics(registry)
  registry.register("ps.sessions", new Gauge[Int] { override def getValue: Int = sessions.size })

  /** Runs what follows from a notice, so that the thread which delivers notices never waits for a connection. */
  val pool: ExecutorService = {
    val count = new AtomicInteger
    Executors.newCachedThreadPool { task =>
      val thread = new Thread(task, s"sparkdl-ps-${count.incrementAndGet}")
      thread.setDaemon(true)
      thread
    }
  }

  private val control: ControlPlane = transport.openControl(conf.firstPort, conf.portCount, this)

  def address: (String, Int) = (transport.host, control.port)

  /** Notices for this rank are kept from now on, even before it knows its peers. */
  def join(job: Long, rank: Int): PsSession = {
    val session = new PsSession(job, rank, this)
    if (sessions.putIfAbsent((job, rank), session) != null)
      throw new CommException("Protocol", f"rank $rank of job $job%x is already here")
    session
  }

  def leave(session: PsSession): Unit = sessions.remove((session.job, session.rank), session)

  def connect(rank: Int, host: String, port: Int): ControlPeer =
    try control.connect(host, port)
    catch {
      case NonFatal(e) =>
        throw new CommException("PeerLost", s"the executor of rank $rank ($host:$port) does not answer: $e", rank, e)
    }

  override def received(message: Any): Unit = message match {
    case notice: Notice =>
      // No session: a rank of a gang that is gone here. Its peers learn that from the gang.
      val session = sessions.get((notice.job, notice.to))
      if (session != null) session.noticed(notice)
    case _ => ()
  }

  override def disconnected(host: String, port: Int): Unit =
    sessions.values.asScala.foreach(_.peerLost(host, port))

  /**
   * The bridge is closed before: that ends every session's connection, and each session is then closed by the thread that
   * runs its operations. To close one from here could unmap memory under a running operation.
   */
  def close(): Unit = {
    val deadline = System.nanoTime + TimeUnit.SECONDS.toNanos(5)
    while (!sessions.isEmpty && System.nanoTime < deadline) Thread.sleep(10)
    control.close()
    pool.shutdownNow()
  }
}
