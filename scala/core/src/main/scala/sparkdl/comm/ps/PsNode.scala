package sparkdl.comm.ps

import java.util.concurrent.{ConcurrentHashMap, ExecutorService, Executors, ThreadFactory, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.codahale.metrics.{Gauge, MetricRegistry}
import org.slf4j.LoggerFactory

import sparkdl.comm.{CommConf, CommException}
import sparkdl.comm.transport.{Blocks, ControlPeer, ControlPlane, ControlReceiver, Transport}

/** What one executor has for all ranks on it: the way to be called, the blocks, the sessions and their metrics. */
final class PsNode(transport: Transport, conf: CommConf, registry: MetricRegistry) extends ControlReceiver {
  import PsNode._

  private val sessions = new ConcurrentHashMap[(Long, Int), PsSession]

  val blocks: Blocks = transport.blocks
  val metrics = new PsMetrics(registry)
  registry.register("ps.sessions", new Gauge[Int] { override def getValue: Int = sessions.size })

  /** Runs what follows from a notice, so that the thread which delivers notices never waits for a connection. */
  val pool: ExecutorService = Executors.newCachedThreadPool(daemons("sparkdl-ps"))

  /** For what is left to do when a session has ended. */
  private val afterwards = Executors.newSingleThreadScheduledExecutor(daemons("sparkdl-ps-afterwards"))

  // It listens, so it is there only while sessions are: most applications have none.
  private var control: Option[ControlPlane] = None
  private var lastLeft = System.nanoTime

  /** Where the sessions here are reached. The port stays the same while there are any. */
  def address: (String, Int) = (transport.host, opened().port)

  private def opened(): ControlPlane = synchronized {
    if (control.isEmpty)
      try control = Some(transport.openControl(conf.firstPort, conf.portCount, this))
      catch {
        case e: java.net.BindException =>
          val ports = s"spark.sparkdl.comm.ports=${conf.firstPort}-${conf.firstPort + conf.portCount - 1}"
          throw new CommException("Conf", s"$ports: no port of ${transport.host} is free: $e", cause = e)
      }
    control.get
  }

  private def closeIfIdle(): Unit = synchronized {
    if (sessions.isEmpty && System.nanoTime - lastLeft >= TimeUnit.SECONDS.toNanos(IdleSeconds)) {
      control.foreach(_.close())
      control = None
    }
  }

  /** Notices for this rank are kept from now on, even before it knows its peers. */
  def join(job: Long, rank: Int): PsSession = {
    val session = new PsSession(job, rank, this)
    if (sessions.putIfAbsent((job, rank), session) != null)
      throw new CommException("Protocol", f"rank $rank of job $job%x is already here")
    session
  }

  /** Its peers may be a little later, and take a connection that ends for a rank that is lost: the port stays for a while. */
  def leave(session: PsSession): Unit = synchronized {
    sessions.remove((session.job, session.rank), session)
    lastLeft = System.nanoTime
    if (!afterwards.isShutdown) afterwards.schedule((() => closeIfIdle()): Runnable, IdleSeconds, TimeUnit.SECONDS)
  }

  /** Makes `attempt` again every second until it succeeds, or the executor ends. */
  def retry(attempt: => Boolean): Unit = {
    def again(): Unit = afterwards.schedule((() => once()): Runnable, 1, TimeUnit.SECONDS)
    def once(): Unit = {
      val done =
        try attempt
        catch {
          case NonFatal(e) =>
            log.warn("What an ended session left could not be removed; it is tried again: {}", e.toString)
            false
        }
      if (!done && !afterwards.isShutdown) again()
    }
    if (!afterwards.isShutdown) again()
  }

  def connect(rank: Int, host: String, port: Int): ControlPeer =
    try opened().connect(host, port)
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
    afterwards.shutdownNow()
    pool.shutdownNow()
    synchronized {
      control.foreach(_.close())
      control = None
    }
  }
}

object PsNode {
  private val IdleSeconds = 30L
  private val log = LoggerFactory.getLogger(classOf[PsNode])

  private def daemons(name: String): ThreadFactory = {
    val count = new AtomicInteger
    task => {
      val thread = new Thread(task, s"$name-${count.incrementAndGet}")
      thread.setDaemon(true)
      thread
    }
  }
}
